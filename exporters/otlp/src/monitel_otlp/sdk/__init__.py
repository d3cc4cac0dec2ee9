"""OpenTelemetry's SDK: providers, processors, encoders."""
