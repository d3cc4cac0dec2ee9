"""The commands of ``python -m monitel``."""
