"""OTLP messages: encoded requests, log records and attributes."""
