"""All private names of OpenTelemetry that this package uses: its logs API is still private, and changes."""

from opentelemetry._logs import Logger, LoggerProvider, SeverityNumber, get_logger_provider


def real(meter_provider: object) -> object:
    """Return the provider that a proxy stands for, if it is set; any other provider is real."""
    return getattr(meter_provider, "_real_meter_provider", None) or meter_provider


def shuts_down(meter_provider: object) -> bool:
    """Return True if a MeterProvider of the SDK is shutting down, so that the collection that runs is its last one."""
    return getattr(real(meter_provider), "_shutdown", False) is True  # another implementation never is
