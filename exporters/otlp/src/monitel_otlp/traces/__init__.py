"""Ranges into spans."""
