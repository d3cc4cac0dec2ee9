"""Requests on disk."""
