"""Every name of OpenTelemetry that begins with an underscore: its logs API still does, and it moves."""

from opentelemetry._logs import Logger, LoggerProvider, SeverityNumber, get_logger_provider

__all__ = ["Logger", "LoggerProvider", "SeverityNumber", "get_logger_provider"]
