"""What has gone wrong, said before the process ends."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import torch

from monitel.event import Severity
from monitel.handlers import emit
from monitel.torch._compat import collective_logger
from monitel.torch.out_of_memory import OutOfMemory
from monitel.torch.place import place

if TYPE_CHECKING:
    from types import TracebackType

_LONGEST = 20_000  # characters of a stack trace: its end says where
_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_HOST_ALLOCATOR = "DefaultCPUAllocator"  # which raises a RuntimeError (c10/core/impl/alloc_cpu.cpp)


class Failures:
    """Logs what ends the process or a thread, and failed collectives.

    ``exception``, or ``out_of_memory`` where it is torch's OutOfMemoryError, a MemoryError or what torch's allocator of
    host memory raises: FATAL where nobody has caught it in the main thread, ERROR in another one. A GPU's is an ERROR
    also where somebody catches it: see :class:`OutOfMemory`. ``collective.failed`` (ERROR): an exception of a
    collective operation, also when somebody catches it. What an exporter has to deliver then, it delivers when Python
    ends: a process that is killed or aborts says nothing.
    """

    def install(self) -> None:
        """Put hooks before those that are there, which run afterwards."""
        self._on = True
        self._logger = collective_logger()
        self._memory = OutOfMemory()
        self._memory.install()
        self._handler = _Collectives()
        self._logger.addHandler(self._handler)
        self._before = sys.excepthook, threading.excepthook
        then, then_of_threads = self._before

        def of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._on:
                _say(error, Severity.FATAL)
            then(kind, error, trace)

        def of_thread(arguments: threading.ExceptHookArgs, /) -> None:
            if self._on and arguments.exc_value is not None:
                _say(arguments.exc_value, Severity.ERROR)
            then_of_threads(arguments)

        self._ours = of_process, of_thread
        sys.excepthook, threading.excepthook = self._ours

    def remove(self) -> None:
        """Take the hooks back; one that somebody has put another before only passes on."""
        self._on = False
        self._memory.remove()
        self._logger.removeHandler(self._handler)
        if sys.excepthook is self._ours[0]:
            sys.excepthook = self._before[0]
        if threading.excepthook is self._ours[1]:
            threading.excepthook = self._before[1]

    def tick(self) -> None:
        """Log the GPU's, which its allocator's thread leaves to this one."""
        self._memory.tick()


class _Collectives(logging.Handler):
    """Takes what torch logs of a failed collective: a dict."""

    def emit(self, record: logging.LogRecord) -> None:
        said: Any = record.msg
        if isinstance(said, dict) and "error" in said:
            data = {f"collective.{key}": str(value) for key, value in said.items()}
            _log_quietly("collective.failed", data, Severity.ERROR)


def _say(error: BaseException, severity: Severity) -> None:
    if not isinstance(error, Exception):
        return  # KeyboardInterrupt: somebody wanted it
    kind = type(error)
    data = {
        "exception.type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        "exception.message": str(error),
        "exception.stacktrace": "".join(traceback.format_exception(error))[-_LONGEST:],
    }
    _log_quietly("out_of_memory" if _is_out_of_memory(error) else "exception", data, severity)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, _OUT_OF_MEMORY) or (isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error))


def _log_quietly(name: str, data: dict[str, str], severity: Severity) -> None:
    """Log an event; what a handler raises must not hide what has happened."""
    readable = {key: value.encode(errors="backslashreplace").decode() for key, value in data.items()}
    try:
        emit(name, {**readable, **place()}, severity=severity)
    except Exception:
        logging.getLogger("monitel.torch").warning("an event %r could not be handled", name, exc_info=True)
