"""The screen of ``monitel top``: jobs and ranks in a terminal, with keys. It needs the extra ``monitel[top]``."""
