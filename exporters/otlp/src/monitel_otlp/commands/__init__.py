"""The commands of ``python -m monitel_otlp``."""
