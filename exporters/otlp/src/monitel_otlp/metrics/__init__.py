"""Points and series of metrics, readings, and the metrics of the pipeline itself."""
