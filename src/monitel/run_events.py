"""Run events: ``run.started`` with the first exporter of a process, and ``run.ended`` before the last one ends.

``run.started`` describes the run. The last exception that was not caught is kept for the record of the process.
"""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import re
import shlex
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import cache, partial, wraps
from pathlib import Path
from platform import python_version
from types import FrameType
from typing import Any

from monitel.attributes import escape_surrogates
from monitel.handlers import emit
from monitel.process.exit import finalize, without_interruption
from monitel.process.failures import error_type
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_data_loader_worker, launch_attributes
from monitel.process.masking import mask_arguments, mask_text
from monitel.process.os_threads import RLock, call_in_time, in_main_thread, start_thread
from monitel.stats._window import get_step
from monitel.stats.registry import flush
from monitel.training.activities import begin_shutdown, position
from monitel.variables import BOOLEAN, read_variables

_log = logging.getLogger("monitel")

_COMPLETED, _FAILED, _INTERRUPTED, _PREEMPTED = "completed", "failed", "interrupted", "preempted"
_TRACEBACK = "Traceback (most recent call last):\n"
_LONGEST_MESSAGE, _LONGEST_COMMAND = 1000, 2000  # characters
_GIT_S = 1.0  # seconds by which the disk of the repository may delay the start
_PACKAGES = (
    *("monitel", "torch", "jax", "tensorflow", "numpy"),
    *("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed"),
)
_LIBRARY = re.escape(os.__file__.removesuffix("os.py"))
_INSTALLED = re.compile(rf"[/\\]((site|dist)-packages|src[/\\]monitel(_\w+)?)[/\\]|^<frozen |^{_LIBRARY}")
_PRIORITY = 60  # of the finalizer: after the flush of Stats (100), before pipelines shut down (50)

_lock = RLock()
_exporters: list[tuple[object, bool]] = []  # each with the argument ``ends_run``
_began: float | None = None  # monotonic seconds; None if there is no run
_due: str | None = None  # status of a run that is to end
_last: str | None = None  # status of the last run
_exception: tuple[str, str, str] | None = None
_exit: tuple[int, str] = 0, _COMPLETED  # number of the last call of sys.exit(), and the status with which it ends


def enter(exporter: object, *, enabled: bool | None = None, ends_run: bool = False) -> None:
    """Add an exporter, which has registered its handler; the first one of a process starts the run.

    Workers of torch's DataLoader have no run, and neither has a forked child unless it installs an exporter itself. The
    run ends in the main thread when the process ends, or, with ``ends_run``, when the exporter calls
    :func:`end_if_due` in a thread where a handler may hang. ``enabled`` is MONITEL_RUN_EVENTS by default.
    """
    global _began, _due, _last, _exit
    atexit.unregister(begin_shutdown)
    atexit.register(begin_shutdown)  # before the functions of this exporter, as below
    _watch_main_thread()
    watch_exceptions()
    if enabled is None:
        enabled = bool(read_variables({"run_events": BOOLEAN}, {"run_events": True}).get("run_events", True))
    if not enabled or is_data_loader_worker():
        return
    with _lock:
        _exporters.append((exporter, ends_run))
        atexit.unregister(_end_at_exit)
        atexit.register(_end_at_exit)  # again: it must run before the functions of this exporter, which shut it down
        if _began is not None:
            return
        _began, _due, _last, _exit = time.monotonic(), None, None, (0, _COMPLETED)
        _watch_exit()
    finalize(_end_at_exit, _PRIORITY)
    _emit("run.started", describe_run())


def leave(exporter: object, error: BaseException | None) -> None:
    """Remove an exporter, which still has its handler, and which an exception may have ended. Idempotent.

    After the last one of a process, the run is to end by :func:`end_if_due`.
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

    ``again``: it has delivered nothing. If it is the only one, the next one starts the run again.
    """
    global _began
    with _lock:
        _exporters[:] = [each for each in _exporters if each[0] is not exporter]
        if again and not _exporters:
            _began = None


def preempt() -> None:
    """Record that SIGTERM has arrived: the run is to end as preempted. Waits for no lock that another thread holds."""
    global _due
    _due = _PREEMPTED
    begin_shutdown(take_over=False)  # a handler of the application may let the training go on


def end_on_sigterm(timeout: float) -> None:
    """End the run as preempted, and flush the Stats, in another thread: event handlers may need what this one holds."""

    def end() -> None:
        end_if_due()
        try:
            flush()
        except Exception:
            _log.exception("an event handler raised on SIGTERM")

    preempt()
    if (thread := start_thread(end, "monitel-sigterm-end")) is not None:
        thread.join(timeout)


def final_status() -> str:
    """Return the status of this process, as ``run.ended`` has it, in the thread that ends it.

    Without run events a failure is known only by an exception or SIGTERM.
    """
    known = _due or _last
    return _status_of_the_end() if known in {None, _COMPLETED} else known


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
    if (step := get_step()) is not None:
        details["run.step"] = step
    _emit("run.ended", details)


def _emit(name: str, details: dict[str, Any]) -> None:
    try:
        emit(name, details)
    except Exception:
        _log.exception("an event handler raised on %s", name)


# ---- the end of the program


@cache  # once
def _watch_main_thread() -> None:
    """Begin ``shutdown`` when the main thread ends, before the exit functions of the application."""
    with suppress(AttributeError, RuntimeError):  # private, and in each CPython that is supported; the process ends
        threading._register_atexit(_begin_shutdown_of_main_thread)  # type: ignore[attr-defined]


def _begin_shutdown_of_main_thread() -> None:
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if _ends_child(frame) and frame.f_locals.get("exitcode"):
            _keep_end(_FAILED, None)  # of raise SystemExit
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    trains = position()[0] in {thread.ident for thread in others}
    if not trains and (get_step() is not None or all(thread.daemon for thread in others)):  # others may train later
        begin_shutdown()


@cache
def _watch_exit() -> None:
    """Note calls that may end the process: its code is not visible otherwise. Interactive sessions show the others."""
    others = [] if hasattr(sys, "ps1") else [(builtins, "exit"), (builtins, "quit")]  # the module site adds them
    for place in [(sys, "exit"), *others]:
        if hasattr(*place):
            setattr(*place, _noted(getattr(*place)))


def _noted(function: Any) -> Any:
    @wraps(function)  # with its name and module it can be pickled
    def noted(*code: Any, **named: Any) -> Any:
        global _exit
        try:
            function(*code, **named)
        except SystemExit as error:
            if in_main_thread():  # elsewhere it ends only the thread
                _exit = _exit[0] + 1, _status_of(error)
                with suppress(Exception):
                    error._monitel_call = _Call(_exit, error.__context__)  # type: ignore[attr-defined]
            raise

    return noted


class _Call:
    """A call of ``sys.exit``. As an attribute of its exception, it is deleted with it: when the program catches it."""

    def __init__(self, noted: tuple[int, str], context: BaseException | None) -> None:
        self._noted, self._context = noted, context

    def __del__(self) -> None:
        global _exit
        with suppress(ValueError):  # raised if no Python code runs any more: the exception has ended the program
            if _ends_child(sys._getframe(1)):
                _keep_end(self._noted[1], self._context)
            elif _exit is self._noted:
                _exit = _exit[0], _COMPLETED


@without_interruption(raises=False)
def _end_at_exit() -> None:
    """End the run at the end of the process, before the exporters shut down."""
    global _due
    _due = _due or _status_of_the_end()
    if not any(ends_run for _, ends_run in _exporters):
        end_if_due()


def _status_of_the_end() -> str:
    """Return the status of the process that ends, and keep its exception.

    In a child of multiprocessing it is being handled then, before CPython 3.13.
    """
    global _exception
    error = sys.exc_info()[1]
    _exception = _described(error.__context__ if isinstance(error, SystemExit) else error) or _exception
    if error is None and _goes_on():  # an exception there does not end it
        return _COMPLETED
    error = error or getattr(sys, "last_value", None)
    return _exit[1] if error is None else _status_of(error)


def _status_of(error: BaseException | None) -> str:
    if isinstance(error, SystemExit):
        if error.code is None or (isinstance(error.code, int) and error.code == 0):  # Python exits with 1 for 0.0
            return _COMPLETED
        error = error.__context__ if isinstance(error.__context__, KeyboardInterrupt) else error
    if error is None:
        return _COMPLETED
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED


def _goes_on() -> bool:
    """Return True in an interactive session, which shows exceptions, unless ``sys.exit`` ends it."""
    ended = _exit[1] != _COMPLETED and not isinstance(getattr(sys, "last_value", None), SystemExit)  # IPython shows it
    return (hasattr(sys, "ps1") or bool(sys.flags.interactive)) and not ended


# ---- exceptions


@cache
def watch_exceptions() -> None:
    """Keep the exceptions that end threads, too, and those that multiprocessing prints and no hook gets. Idempotent."""
    previous, print_exc = threading.excepthook, traceback.print_exc

    def excepthook(arguments: threading.ExceptHookArgs, /) -> None:
        global _exception
        _exception = _described(arguments.exc_value) or _exception
        previous(arguments)

    @wraps(print_exc)
    def noted(*arguments: Any, **named: Any) -> None:
        if _ends_child(sys._getframe(1)):
            _keep_end(_status_of(sys.exc_info()[1]), sys.exc_info()[1])
        print_exc(*arguments, **named)

    threading.excepthook, traceback.print_exc = excepthook, noted


def _ends_child(frame: FrameType) -> bool:
    """Return True for the frame in which multiprocessing catches the exceptions that end a child."""
    return frame.f_code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process"


def _keep_end(status: str, error: BaseException | None) -> None:
    global _due, _exception
    _due = _due or status
    _exception = _described(error) or _exception


def last_exception() -> tuple[str, str, str] | None:
    """Return type, message and place of the last exception that has ended the program, a thread or an exporter's block.

    The place is file and line, separated by a colon: the innermost one that is not in an installed package.
    """
    return (None if _goes_on() else _described(getattr(sys, "last_value", None))) or _exception


def _described(error: BaseException | None) -> tuple[str, str, str] | None:
    """Return an exception for :func:`last_exception`; None if it is not a failure."""
    if (kind := error_type(type(error), BaseException)) is None or error is None:
        return None
    try:
        message = str(error).strip()
        if _TRACEBACK in message:  # of a worker of a DataLoader, or a process of mp.spawn(): its last line is the cause
            first, *lines = message.split("\n")
            message = "\n".join([f"{first} {lines[-1]}", *lines])
        message = escape_surrogates(mask_text(message, os.environ)[:_LONGEST_MESSAGE])
    except Exception:
        message = ""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [each for each in places if not _INSTALLED.search(each[0])] or places
    return kind, message, escape_surrogates(":".join(map(str, own[-1]))) if own else ""


# ---- the description of the run


def describe_run() -> dict[str, str | int]:
    """Return what is known about the run of this process, as the details of an event. Never raises."""
    found: dict[str, str | int | None] = {"run.version.python": python_version()}
    commit = partial(call_in_time, git_commit, _GIT_S)
    for name, read in (("run.command", _command), ("run.git.commit", commit), ("host.name", socket.gethostname)):
        with suppress(Exception):
            found[name] = read()
    found["run.world_size"] = launch_attributes().get("training.world_size")
    for package in _PACKAGES:
        version = getattr(sys.modules.get(package), "__version__", None)
        found[f"run.version.{package}"] = version if isinstance(version, str) else None
    return {name: escape_surrogates(each) if isinstance(each, str) else each for name, each in found.items() if each}


def _command() -> str:
    return shlex.join(mask_arguments(sys.orig_argv, os.environ))[:_LONGEST_COMMAND]


def git_commit(start: Path | None = None) -> str | None:
    """Return the commit of the repository that a folder is in, by default the current one, without running git.

    Raises:
        OSError: A file of the repository cannot be read.
    """
    start = start or Path.cwd()
    git = next((each for folder in (start, *start.parents) if (each := folder / ".git").exists()), None)
    if git is None:
        return None
    if not git.is_dir():  # of a worktree or a submodule
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    common = git / _text(git / "commondir") if (git / "commondir").exists() else git
    head = _text(git / "HEAD")
    if head.startswith("ref:"):
        name = head.removeprefix("ref:").strip()
        found = [_text(folder / name) for folder in (git, common) if (folder / name).is_file()]
        if not found and (packed := common / "packed-refs").is_file():
            found = [line.split()[0] for line in _text(packed).splitlines() if line.endswith(f" {name}")]
        head = found[0] if found else ""  # a new branch has no commit
    return head if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", head) else None


def _text(file: Path) -> str:
    return file.read_text("utf-8").strip()


def _forget() -> None:
    """Leave the run to the parent, in a forked child."""
    global _lock, _began, _due, _last, _exception, _exit
    _lock = RLock()
    _began = _due = _last = _exception = None
    _exit = 0, _COMPLETED
    _exporters.clear()


register_at_fork(after_in_child=_forget)
