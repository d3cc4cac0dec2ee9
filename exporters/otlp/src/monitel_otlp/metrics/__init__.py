"""Conversion of windows to metric points."""
