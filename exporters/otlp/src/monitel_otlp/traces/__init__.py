"""Traces: ranges that become spans."""
