"""OpenTelemetry's SDK: providers, processors, and requests of their data."""
