"""Handler that exports records of Python's ``logging`` as OpenTelemetry log records."""

from __future__ import annotations

import logging
import time
import traceback
import weakref
from typing import Any

from monitel.attributes import text_of
from monitel.blackbox.forms import LogRecord
from monitel.process.failures import enable_loggers, error_type, warn_once
from monitel.process.os_threads import Event, start_thread
from monitel_otlp._compat import std_to_otel
from monitel_otlp.messages.attributes import plain_value
from monitel_otlp.pipeline import inlet

_log = logging.getLogger("monitel.otlp")

_EXCLUDED = ("monitel", "opentelemetry", "urllib3", "requests", "grpc")
#: Attributes that every record has; the others come from ``extra``.
_STANDARD = {*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"}
_CONFIGURATION = 0.05  # seconds that logging is being configured
_SEVERITIES = {"WARNING": "WARN", "CRITICAL": "FATAL"}  # OpenTelemetry's names, where they differ from Python's


class LogHandler(logging.Handler):
    """Sends log records through a pipeline, except records of the pipeline itself and of the libraries that it uses.

    Python prints warnings of an application without any handler to stderr, by :data:`logging.lastResort`. This handler
    continues to do so: it passes the records that no other handler receives to the last resort.
    """

    def __init__(self, level: int | str) -> None:
        super().__init__(level.upper() if isinstance(level, str) else level)
        self._lowest = self.level
        self._over = False
        if logging.lastResort is not None:
            self.level = min(self.level, logging.lastResort.level)  # it needs the records that are not exported, too

    def createLock(self) -> None:  # noqa: N802  logging's name
        """Make none: a signal handler that logs may interrupt a record, while another thread waits for that record."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> Any:
        passed = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record, and pass it to the last resort if no other handler receives it."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)
        if record.levelno >= self._lowest:
            self._export(record)

    def put_back(self) -> None:
        """Add this handler to the root logger again, if ``dictConfig()`` or ``basicConfig(force=True)`` removed it."""
        root = logging.getLogger()
        if self._over or self in root.handlers:
            return
        # Without locks: those of logging may be of greenlets, and threads hold or await this handler's.
        registry: Any = logging
        registry._handlerList.append(weakref.ref(self, registry._removeHandlerRef))  # the next configuration closes it
        root.handlers.append(self)
        enable_loggers()  # dictConfig() has disabled the one that warns
        warn_once(
            _log,
            "logging was configured after configure(logging_level=...), which has removed monitel's handler; it is "
            "back, but records in between are not exported: configure logging before",
        )

    def close(self) -> None:
        """Come back soon: logging is being configured, which closes all handlers."""
        super().close()
        if not self._over:
            start_thread(self._return, "monitel-otlp-logging")

    def _return(self) -> None:
        Event().wait(_CONFIGURATION)  # one that takes longer removes the handler again, until the next round
        self.put_back()

    def end(self) -> None:
        self._over = True
        logging.getLogger().removeHandler(self)

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
        if name.partition(".")[0] in _EXCLUDED or inlet.pipeline is None:
            return
        try:
            logged = self._logged(name, record)
        except Exception:
            logged = None
            self.handleError(record)
        try:
            inlet.take_record(logged)
        except Exception:  # never raises into the code that logs
            self.handleError(record)

    def _logged(self, name: str, record: logging.LogRecord) -> LogRecord:
        """Return a record with the fields that OpenTelemetry's own handler gives it."""
        body: Any = record.msg
        if record.args or isinstance(body, str):
            try:
                body = record.getMessage()
            except Exception:
                self.handleError(record)
        return LogRecord(
            time_ns=int(record.created * 1e9),
            observed_ns=time.time_ns(),
            severity=int(std_to_otel(record.levelno).value),
            name="",
            step=None,
            attributes=_attributes(record),
            body=plain_value(body),
            scope=text_of(name),
            severity_text=text_of(_SEVERITIES.get(record.levelname, record.levelname)),
        )


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    """Return the attributes of a record: those of ``extra``, its source line, its exception and its stack."""
    found = {text_of(name): value for name, value in vars(record).items() if name not in _STANDARD}
    found |= {"code.file.path": record.pathname, "code.line.number": record.lineno}
    if record.funcName:
        found["code.function.name"] = record.funcName
    if record.stack_info:
        found["code.stacktrace"] = record.stack_info
    if record.exc_info and (error := record.exc_info[1]) is not None:
        found["exception.type"] = error_type(type(error)) or type(error).__qualname__
        found["exception.message"] = text_of(error)
        found["exception.stacktrace"] = "".join(traceback.format_exception(*record.exc_info))
    elif record.exc_text and not record.exc_info:  # the record has come from another process
        found["exception.stacktrace"] = record.exc_text
    return {name: plain_value(value) for name, value in found.items() if name}
