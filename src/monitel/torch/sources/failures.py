"""Uncaught exceptions, including those of notebook cells, and failed collectives."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from monitel.event import Severity
from monitel.failures import error_type
from monitel.handlers import emit
from monitel.torch._compat import collective_logger
from monitel.torch.context import current_context
from monitel.torch.sources.out_of_memory import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_MAX_STACKTRACE = 20_000  # characters, from the end, which has the innermost frames
_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_HOST_ALLOCATOR = "DefaultCPUAllocator"  # raises a RuntimeError (c10/core/impl/alloc_cpu.cpp)


class Failures:
    """Logs exceptions that end the process, a thread or a notebook cell, and failed collectives.

    * ``exception``: FATAL if uncaught in the main thread, ERROR if uncaught in another thread or in a notebook cell.
    * ``out_of_memory`` instead, if the exception is torch's OutOfMemoryError, a MemoryError, or that of torch's
      allocator of host memory. GPU memory errors are logged as ERROR even if caught, see :class:`OutOfMemory`.
    * ``collective.failed`` (ERROR): an exception in a collective operation, even if caught.

    Exporters deliver these events when Python exits. A process that is killed or aborts reports nothing.
    """

    def install(self) -> None:
        """Set exception hooks, which call the previous ones afterwards, and attach to torch's loggers."""
        self._on = True
        self._logger = collective_logger()
        self._memory = OutOfMemory()
        self._memory.install()
        self._handler = _CollectiveHandler()
        self._logger.addHandler(self._handler)
        self._previous = sys.excepthook, threading.excepthook
        previous, previous_in_thread = self._previous

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._on:
                _report(error, Severity.FATAL)
            previous(kind, error, trace)

        def excepthook_in_thread(arguments: threading.ExceptHookArgs, /) -> None:
            if self._on and arguments.exc_value is not None:
                _report(arguments.exc_value, Severity.ERROR)
            previous_in_thread(arguments)

        self._hooks = excepthook, excepthook_in_thread
        sys.excepthook, threading.excepthook = self._hooks
        self._cells = CellErrors(lambda error: _report(error, Severity.ERROR))

    def remove(self) -> None:
        """Restore the previous hooks. If somebody else has wrapped a hook since, it stays and only passes calls on."""
        self._on = False
        self._cells.remove()
        self._memory.remove()
        self._logger.removeHandler(self._handler)
        if sys.excepthook is self._hooks[0]:
            sys.excepthook = self._previous[0]
        if threading.excepthook is self._hooks[1]:
            threading.excepthook = self._previous[1]

    def poll(self) -> None:
        """Log the GPU memory errors since the last poll."""
        self._memory.poll()


class _CollectiveHandler(logging.Handler):
    """Logs an event for each failed collective, which torch logs as a dict."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: Any = record.msg
        if isinstance(fields, dict) and "error" in fields:
            data = {f"collective.{key}": str(value) for key, value in fields.items()}
            _emit_safely("collective.failed", data, Severity.ERROR)


def _report(error: BaseException, severity: Severity) -> None:
    kind = error_type(type(error))
    if kind is None:
        return  # such as KeyboardInterrupt: the user asked for it
    data = {
        "exception.type": kind,
        "exception.message": str(error),
        "exception.stacktrace": "".join(traceback.format_exception(error))[-_MAX_STACKTRACE:],
    }
    _emit_safely("out_of_memory" if _is_out_of_memory(error) else "exception", data, severity)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, _OUT_OF_MEMORY) or (isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error))


def _emit_safely(name: str, data: dict[str, str], severity: Severity) -> None:
    """Log an event. Exceptions of event handlers are logged, so that they do not hide the failure itself."""
    readable = {key: value.encode(errors="backslashreplace").decode() for key, value in data.items()}
    try:
        emit(name, {**readable, **current_context()}, severity=severity)
    except Exception:
        logging.getLogger("monitel.torch").warning("an event handler raised while processing %r", name, exc_info=True)


_CELL_RUN = "post_run_cell"


class CellErrors:
    """Calls a function with each exception that ends a cell of the running IPython shell, until it is removed.

    IPython calls it after it has shown the exception, and in the same cell that creates it, too. It is not imported:
    without a running shell nothing happens. The exception is not kept.

    Args:
        report: Called with the exception, in the thread that runs the cell.
    """

    def __init__(self, report: Callable[[BaseException], object]) -> None:
        self._report = report
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        self._shell = None if get_shell is None else get_shell()
        if self._shell is not None:
            self._shell.events.register(_CELL_RUN, self._after_cell)

    def remove(self) -> None:
        """Stop. Idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            with suppress(ValueError):  # somebody else has removed it
                shell.events.unregister(_CELL_RUN, self._after_cell)

    def _after_cell(self, result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            self._report(error)
