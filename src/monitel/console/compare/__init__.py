"""The numbers of several runs, side by side."""
