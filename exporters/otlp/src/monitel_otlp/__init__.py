"""monitel's whole OpenTelemetry pipeline: providers, OTLP delivery, spool and exit."""

from monitel_otlp.attach import LogExporter, MetricExporter, SpanExporter
from monitel_otlp.configuration import configure
from monitel_otlp.pipeline import Pipeline
from monitel_otlp.ranks import RankResourceDetector

__version__ = "0.1.0"

__all__ = ["LogExporter", "MetricExporter", "Pipeline", "RankResourceDetector", "SpanExporter", "configure"]
