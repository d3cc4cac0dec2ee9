"""Adapters for training frameworks. Each module imports its framework."""
