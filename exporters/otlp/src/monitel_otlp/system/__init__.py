"""Metrics of the host, the process and its GPUs."""
