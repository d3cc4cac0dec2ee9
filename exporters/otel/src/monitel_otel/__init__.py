"""Export of monitel's Stats, Events and ranges through the OpenTelemetry providers of an application."""

from monitel_otel.installation import Installation, install

__version__ = "0.3.0"

__all__ = ["Installation", "install"]
