"""OTLP messages: encoded requests, their records and attributes, and their JSON."""
