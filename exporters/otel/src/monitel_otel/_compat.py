"""All private names of OpenTelemetry that this package uses: its logs API is still private, and changes."""

from opentelemetry._logs import Logger, LoggerProvider, SeverityNumber, get_logger_provider
from opentelemetry.metrics import get_meter_provider


def shuts_down(meter_provider: object) -> bool:
    """Return True if a MeterProvider of the SDK is shutting down, so that the collection that runs is its last one.

    A proxy stands for the global provider. Another implementation is never shutting down.
    """
    found = getattr(meter_provider, "_shutdown", None)
    return (getattr(get_meter_provider(), "_shutdown", False) if found is None else found) is True
