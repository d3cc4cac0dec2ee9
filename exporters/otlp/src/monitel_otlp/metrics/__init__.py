"""Metrics: points of windows, with the totals of their series, readings, and the metrics of the pipeline itself."""
