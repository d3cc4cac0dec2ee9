"""Folders of black boxes: where they are, whose they are, and whether their processes run."""
