"""Run events: ``run.started`` with the first exporter of a process, and ``run.ended`` before the last one ends.

It also keeps the last exception that was not caught, for the record of the process.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from monitel.attributes import escape_surrogates
from monitel.handlers import emit
from monitel.process.exit import finalize
from monitel.process.exit_code import ExitCode
from monitel.process.failures import error_type
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_data_loader_worker
from monitel.process.os_threads import RLock
from monitel.process.run_description import describe_run
from monitel.stats._window import get_step
from monitel.training import activities
from monitel.training.activities import begin_shutdown, position
from monitel.variables import BOOLEAN, read_variables

__all__ = [
    "end_if_due",
    "enter",
    "failed",
    "last_exception",
    "leave",
    "preempt",
    "status",
    "watch_threads",
    "withdraw",
]

_log = logging.getLogger("monitel")

_COMPLETED, _FAILED, _INTERRUPTED, _PREEMPTED = "completed", "failed", "interrupted", "preempted"
_CHOICES = {"run_events": BOOLEAN}
_LONGEST = 1000  # characters of a message
_INSTALLED = re.compile(rf"[/\\](site|dist)-packages[/\\]|^<frozen |^{re.escape(os.__file__.removesuffix('os.py'))}")
_PRIORITY = 60  # of the finalizer: after the flush of Stats (100), before pipelines shut down (50)

_lock = RLock()
_exporters: list[tuple[object, bool]] = []  # each with the argument ``ends_run``
_began: float | None = None  # monotonic seconds; None if there is no run
_due: str | None = None  # status of a run that is to end
_last: str | None = None  # status of the last run
_exit_code = ExitCode()
_watching = _preempted = _watching_threads = False
_exception: tuple[str, str, str] | None = None


def enter(exporter: object, *, enabled: bool | None = None, ends_run: bool = False) -> None:
    """Add an exporter, which has registered its handler; the first one of a process starts the run.

    Workers of torch's DataLoader have no run, and neither has a forked child unless it installs an exporter itself.

    Args:
        exporter: The exporter.
        enabled: Have run events; by default the value of MONITEL_RUN_EVENTS, or True.
        ends_run: The exporter calls :func:`end_if_due` when it ends, in a thread where a handler may hang. Without such
            an exporter, the run ends in the main thread when the process ends.
    """
    global _began, _due, _last
    atexit.unregister(begin_shutdown)
    atexit.register(begin_shutdown)  # before the functions of this exporter, as below
    _watch_main_thread()
    if enabled is None:
        enabled = bool(read_variables(_CHOICES, {"run_events": True}).get("run_events", True))
    if not enabled or is_data_loader_worker():
        return
    with _lock:
        _exporters.append((exporter, ends_run))
        atexit.unregister(_end_at_exit)
        atexit.register(_end_at_exit)  # again: it must run before the functions of this exporter, which shut it down
        if _began is not None:
            return
        _began, _due, _last = time.monotonic(), None, None
        _exit_code.watch()
    finalize(_end_at_exit, _PRIORITY)
    _emit("run.started", describe_run())


def leave(exporter: object, error: BaseException | None) -> None:
    """Remove an exporter. After the last one of a process, the run is to end by :func:`end_if_due`. Idempotent.

    Args:
        exporter: The exporter, which still has its handler.
        error: The exception that ends it.
    """
    global _due, _exception
    _exception = _described(error) or _exception
    with _lock:
        left = [each for each in _exporters if each[0] is not exporter]
        if len(left) < len(_exporters) and not left and _due is None:
            _due = _status_of(error)
        _exporters[:] = left


def withdraw(exporter: object, *, again: bool) -> None:
    """Remove an exporter that gives way to another one, which continues the run. Idempotent.

    Args:
        exporter: The exporter.
        again: It has delivered nothing: if it is the only one, the next one starts the run again.
    """
    global _began
    with _lock:
        _exporters[:] = [each for each in _exporters if each[0] is not exporter]
        if again and not _exporters:
            _began = None
            _exit_code.forget()


def preempt() -> None:
    """Record that SIGTERM has arrived: the run is to end as preempted. Waits for no lock that another thread holds."""
    global _due, _preempted
    _due, _preempted = _PREEMPTED, True
    begin_shutdown(take_over=False)  # a handler of the application may let the training go on


def failed() -> bool:
    """Return True if this process ends, and not well: by an exception, an exit code or SIGTERM.

    It is for the thread that ends the process. Exit codes are known only with run events.
    """
    return _preempted or sys.exc_info()[1] is not None or _status_at_exit() != _COMPLETED


def status() -> str:
    """Return the status of the last run, or that of a run that would end now, as ``run.ended`` has it.

    Without run events a failure is known only by an exception or SIGTERM.
    """
    return _PREEMPTED if _preempted else _due or _last or _status_at_exit()


def end_if_due() -> None:
    """Emit ``run.ended`` if the run is to end. Idempotent."""
    global _began, _due, _last
    with _lock:
        if _due is None or _began is None:
            return
        details: dict[str, Any] = {"run.status": _due, "run.duration": time.monotonic() - _began}
        _last = _due
        _began = _due = None
        _exporters.clear()
        _exit_code.forget()
    if (step := get_step()) is not None:
        details["run.step"] = step
    _emit("run.ended", details)


def watch_threads() -> None:
    """Keep the exceptions that end threads, too. Idempotent."""
    global _watching_threads
    if _watching_threads:
        return
    _watching_threads, previous = True, threading.excepthook

    def excepthook(arguments: threading.ExceptHookArgs, /) -> None:
        global _exception
        _exception = _described(arguments.exc_value) or _exception
        previous(arguments)

    threading.excepthook = excepthook


def last_exception() -> tuple[str, str, str] | None:
    """Return type, message and place of the last exception that has ended the program, a thread or an exporter's block.

    The place is file and line, separated by a colon: the innermost one that is not in an installed package.
    """
    return (None if _is_interactive() else _described(getattr(sys, "last_value", None))) or _exception


def _described(error: BaseException | None) -> tuple[str, str, str] | None:
    """Return an exception for :func:`last_exception`; None if it is not a failure."""
    if (kind := error_type(type(error))) is None or error is None:
        return None
    try:
        message = escape_surrogates(str(error)[:_LONGEST])
    except Exception:
        message = ""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [each for each in places if not _INSTALLED.search(each[0])] or places
    return kind, message, escape_surrogates(":".join(map(str, own[-1]))) if own else ""


def _watch_main_thread() -> None:
    """Begin ``shutdown`` when the main thread ends, before the exit functions of the application."""
    global _watching
    if not _watching and hasattr(threading, "_register_atexit"):  # private, and in each CPython that is supported
        _watching = True
        with suppress(RuntimeError):  # the process ends already
            threading._register_atexit(_begin_shutdown_of_main_thread)


def _begin_shutdown_of_main_thread() -> None:
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if activities.stepping:
        trains = position()[0] in {thread.ident for thread in others}
    else:
        trains = not all(thread.daemon for thread in others)  # perhaps later
    if not trains:
        begin_shutdown()


def _end_at_exit() -> None:
    """End the run at the end of the process, before the exporters shut down."""
    global _due
    if _due is None:
        _due = _status_at_exit()
    if not any(ends_run for _, ends_run in _exporters):
        end_if_due()


def _status_at_exit() -> str:
    if _is_interactive():  # an exception there does not end it
        return _COMPLETED
    if (error := getattr(sys, "last_value", None)) is not None:
        return _status_of(error)
    if not _exit_code.failed:
        return _COMPLETED
    return _INTERRUPTED if _exit_code.interrupted else _FAILED


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _emit(name: str, details: dict[str, Any]) -> None:
    try:
        emit(name, details)
    except Exception:
        _log.exception("an event handler raised on %s", name)


def _status_of(error: BaseException | None) -> str:
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return _COMPLETED
        error = error.__context__ if isinstance(error.__context__, KeyboardInterrupt) else error
    if error is None:
        return _COMPLETED
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED


def _forget() -> None:
    """Leave the run to the parent, in a forked child."""
    global _lock, _began, _due, _last, _exception
    _lock = RLock()
    _began = _due = _last = _exception = None
    _exporters.clear()
    _exit_code.forget()


register_at_fork(after_in_child=_forget)
