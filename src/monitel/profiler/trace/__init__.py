"""Recordings of ranges, and trace files of recordings."""
