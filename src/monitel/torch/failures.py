"""Uncaught exceptions, including those of notebook cells, out-of-memory errors, and failed collectives."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import torch

from monitel import clock
from monitel.event import Severity
from monitel.handlers import emit
from monitel.process.failures import error_type
from monitel.process.masking import mask_values
from monitel.torch.hooks import Missing, Patch, Source, find
from monitel.torch.recording import context_at, emit_at
from monitel.training.step import get_step

_log = logging.getLogger("monitel.torch")
_MAX_STACKTRACE = 20_000  # characters, from the end, which has the innermost frames
_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_MAX_QUEUED = 1000
_CELL_RUN = "post_run_cell"  # IPython's event
_HOST_ALLOCATOR = "DefaultCPUAllocator"  # raises a RuntimeError (c10/core/impl/alloc_cpu.cpp)

_failed_allocations: deque[tuple[datetime, int | None, tuple[int, ...]]] = deque(maxlen=_MAX_QUEUED)
_observes = False  # whether failed allocations are queued
_attached = False


class Failures(Source):
    """Logs exceptions that end the process, a thread or a cell, failed allocations, and failed collectives."""

    def install(self) -> None:
        self._logger: logging.Logger = find("torch.distributed.c10d_logger", "_c10d_logger")
        self._handler = _CollectiveHandler()
        self.hook(Patch(sys, "excepthook", _excepthook))
        self.hook(Patch(threading, "excepthook", _excepthook_in_thread))
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)  # not imported: only a notebook has it
        self._shell = None if get_shell is None else get_shell()
        if self._shell is not None:
            self._shell.events.register(_CELL_RUN, _after_cell)
        # Its only handler is a NullHandler, so the records are otherwise discarded. After this nothing raises.
        self._logger.addHandler(self._handler)
        _observe_allocations()

    def remove(self) -> None:
        global _observes
        _observes = False
        _failed_allocations.clear()  # the last poll has logged them
        if self._shell is not None:
            with suppress(ValueError):  # somebody else has removed it
                self._shell.events.unregister(_CELL_RUN, _after_cell)
        self.unhook()
        self._logger.removeHandler(self._handler)

    def poll(self) -> None:
        while _failed_allocations:
            timestamp, step, (device, requested, limit, free) = _failed_allocations.popleft()
            message = f"out of memory on cuda:{device}: {requested} bytes requested, {free} free, limit {limit}"
            data = {
                "message": message,
                "memory.device": f"cuda:{device}",
                "memory.requested": requested,
                "memory.limit": limit,
                "memory.free": free,
            }
            emit_at(step, "out_of_memory", data, severity=Severity.ERROR, timestamp=timestamp)


def _excepthook(previous: Callable[..., None], kind: object, error: BaseException, trace: object) -> None:
    _report(error, Severity.FATAL)
    previous(kind, error, trace)


def _excepthook_in_thread(previous: Callable[..., None], arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _report(arguments.exc_value, Severity.ERROR)
    previous(arguments)


def _after_cell(result: Any) -> None:
    """Report an exception that ends a cell, after IPython has shown it."""
    error = getattr(result, "error_in_exec", None)
    if error is not None:
        _report(error, Severity.ERROR)


class _CollectiveHandler(logging.Handler):
    """Logs an event for each failed collective, which torch logs as a dict."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: Any = record.msg
        if isinstance(fields, dict) and "error" in fields:
            data = {f"collective.{key}": str(value) for key, value in fields.items()}
            _emit_safely("collective.failed", data, Severity.ERROR)


def _report(error: BaseException, severity: Severity) -> None:
    kind = error_type(type(error), BaseException)
    if kind is None:
        return  # such as KeyboardInterrupt: the user asked for it
    texts = {
        "exception.type": kind,
        "exception.message": str(error),
        "exception.stacktrace": "".join(traceback.format_exception(error))[-_MAX_STACKTRACE:],
    }
    _emit_safely("out_of_memory" if _is_out_of_memory(error) else "exception", texts, severity)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, _OUT_OF_MEMORY) or (isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error))


def _emit_safely(name: str, data: dict[str, str], severity: Severity) -> None:
    """Log an event. Exceptions of event handlers are logged, so that they do not hide the failure itself."""
    masked = mask_values(data, os.environ)
    readable = {key: value.encode(errors="backslashreplace").decode() for key, value in masked.items()}
    try:
        emit(name, {**readable, **context_at(get_step())}, severity=severity)
    except Exception:
        _log.warning("an event handler raised while processing %r", name, exc_info=True)


def _observe_allocations() -> None:
    """Have torch's CUDA allocator call an observer, in the allocating thread, before it raises.

    The observer only queues numbers: there is no memory. It is attached when the job initializes CUDA, and stays.
    """
    global _observes, _attached
    _observes = True
    if not _attached and torch.backends.cuda.is_built():
        _attached = True
        try:
            find("torch.cuda", "_lazy_call")(_attach)
        except Missing as missing:
            _log.warning("cannot observe caught out-of-memory errors with this torch version: %s", missing)


def _attach() -> None:
    """Attach the observer while torch initializes CUDA, which an exception would abort."""
    try:
        find("torch._C", "_cuda_attach_out_of_memory_observer")(_observe)
    except Exception:  # an allocator other than torch's has no observer
        _log.warning("cannot observe caught out-of-memory errors with this CUDA allocator", exc_info=True)


def _observe(*numbers: int) -> None:
    """Queue device, requested bytes, limit of this process, free bytes. It runs without the allocator's lock."""
    if _observes:
        _failed_allocations.append((clock.now(), get_step(), numbers))
