"""monitel's whole OpenTelemetry pipeline: providers, OTLP delivery, spool and exit."""

from monitel_otlp.pipeline import Pipeline, configure

__version__ = "0.1.0"

__all__ = ["Pipeline", "configure"]
