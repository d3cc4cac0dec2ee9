"""The command ``monitel``: what jobs are or were doing, in the terminal. It needs no other package."""
