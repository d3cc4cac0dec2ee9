"""All private names of OpenTelemetry that this package uses: its logs API is still private, and changes."""

from opentelemetry._logs import Logger, LoggerProvider, SeverityNumber, get_logger_provider

__all__ = ["Logger", "LoggerProvider", "SeverityNumber", "get_logger_provider"]
