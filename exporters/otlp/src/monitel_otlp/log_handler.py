"""Records of Python's logging as OpenTelemetry log records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel_otlp.sdk._compat import SeverityNumber, std_to_otel

if TYPE_CHECKING:
    from monitel_otlp.pipeline import Pipeline

_OWN = ("monitel", "opentelemetry", "urllib3", "requests", "grpc")


class LogHandler(logging.Handler):
    """Sends log records by a pipeline; what the pipeline itself logs, or makes others log, is left out.

    Args:
        pipeline: By which they travel.
        level: From which level on.
    """

    def __init__(self, pipeline: Pipeline, level: int | str) -> None:
        super().__init__(level)
        self._pipeline = pipeline

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record."""
        if record.name.partition(".")[0] in _OWN or self._pipeline.ended is not None:
            return
        engine = self._pipeline.engine
        if engine is None or engine.providers is None:
            return
        try:
            error = record.exc_info[1] if record.exc_info else None
            inside = engine.innermost()
            engine.providers.logger_provider.get_logger(record.name).emit(
                timestamp=int(record.created * 1e9),
                context=None if inside is None else inside.context(),
                severity_number=SeverityNumber(std_to_otel(record.levelno).value),
                severity_text=record.levelname,
                body=record.getMessage(),
                attributes={"code.file.path": record.pathname, "code.line.number": record.lineno},
                exception=error,
            )
        except Exception:
            self.handleError(record)
