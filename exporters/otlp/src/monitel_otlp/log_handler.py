"""Handler that exports records of Python's ``logging`` as OpenTelemetry log records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates
from monitel_otlp._compat import SeverityNumber, std_to_otel

if TYPE_CHECKING:
    from monitel_otlp.pipeline import Pipeline

_EXCLUDED = ("monitel", "opentelemetry", "urllib3", "requests", "grpc")


class LogHandler(logging.Handler):
    """Sends log records through a pipeline, except records of the pipeline itself and of the libraries that it uses.

    A record that cannot be formatted is dropped, counted as ``encoding``, and reported by ``handleError()``.

    Python prints warnings of an application without any handler to stderr, by :data:`logging.lastResort`. This handler
    continues to do so: it passes the records that no other handler receives to the last resort.

    Args:
        pipeline: The pipeline.
        level: The lowest level to send.
    """

    def __init__(self, pipeline: Pipeline, level: int | str) -> None:
        super().__init__(level)
        self._pipeline = pipeline
        self._lowest = self.level
        if logging.lastResort is not None:
            self.level = min(self.level, logging.lastResort.level)  # it needs the records that are not exported, too

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record, and pass it to the last resort if no other handler receives it."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)
        if record.levelno >= self._lowest:
            self._export(record)

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Return True if the record's logger and its ancestors have no handler except this one."""
        logger: Any = logging.Logger.manager.loggerDict.get(str(record.name))
        if not isinstance(logger, logging.Logger):  # the root is not in the dict
            logger = logging.getLogger()
        ours: list[logging.Handler] = []
        while logger is not None:
            for handler in logger.handlers:
                if not isinstance(handler, LogHandler):
                    return False
                ours.append(handler)
            logger = logger.parent if logger.propagate else None
        return ours[:1] == [self]  # the first one, if there are several pipelines

    def _export(self, record: logging.LogRecord) -> None:
        name = str(record.name)
        if name.partition(".")[0] in _EXCLUDED or self._pipeline.ended is not None:
            return
        engine = self._pipeline.engine_for("logs")
        if engine is None or engine.providers is None:
            return
        try:
            fields = _fields(record)
        except Exception:
            engine.accounting.lose("logs", "encoding", 1)
            self.handleError(record)
            return
        try:
            inside = engine.innermost()
            context = None if inside is None else inside.context()
            engine.providers.logger_provider.get_logger(name).emit(context=context, **fields)
        except Exception:  # raised by a processor that the application has added
            self.handleError(record)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record as arguments of ``Logger.emit()``."""
    return {
        "timestamp": int(record.created * 1e9),
        "severity_number": SeverityNumber(std_to_otel(record.levelno).value),
        "severity_text": record.levelname,
        "body": escape_surrogates(record.getMessage()),
        "attributes": {"code.file.path": escape_surrogates(record.pathname), "code.line.number": record.lineno},
        "exception": _printable(record.exc_info[1]) if record.exc_info else None,
    }


def _printable(error: BaseException | None) -> BaseException | None:
    """Return an exception if it can be converted to a str, else None."""
    try:
        str(error)
    except Exception:
        return None
    return error
