"""Python stacks of this process: written when a fatal signal ends it, or returned as text while it runs.

:mod:`faulthandler` writes the stacks of all threads to a file, then the signal has its previous effect. A process has
only one faulthandler, and that of the application wins.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import FrameType

from monitel.process import os_threads
from monitel.process.fork import register_at_fork

__all__ = ["crash_signal", "main_stack", "stacks_now", "stop", "write_to"]

_FATAL = re.compile(r"Fatal Python error: (.+)\n")
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",  # since CPython 3.14
    "Illegal instruction": "SIGILL",
}
_SURVIVED_S = 10  # seconds after a signal
_MOST_FRAMES = 100  # of a thread, as in faulthandler
_MOST_MAIN_FRAMES = 30  # in each snapshot
_CUT = "\n... (cut)\n"
_HIGH = 900  # the lowest number of a descriptor that an application which closes others is likely to leave alone

_path = ""  # of the file; empty without one
_descriptor = -1  # of faulthandler, which keeps it; without a file, of /dev/null
_file: os.stat_result | None = None  # its file
_enabled = False  # by this module


def keep_high(descriptor: int) -> int:
    """Return another number for a descriptor, as high as the limit of open files permits, and close the first one."""
    with suppress(ImportError, OSError):  # Windows has no fcntl; or the limit is lower
        from fcntl import F_DUPFD_CLOEXEC, fcntl

        kept = fcntl(descriptor, F_DUPFD_CLOEXEC, _HIGH)
        os.close(descriptor)
        return kept
    return descriptor


def write_to(path: str | os.PathLike[str]) -> None:
    """Have the stacks written to a file when a signal ends this process. To be called each second.

    A later call may give another path. faulthandler is enabled if it is not, in the thread of the first call also for
    an overflow of its stack. The file is opened again if the application has closed its descriptor, and emptied if the
    process has survived a signal, because another handler recovered from it.
    """
    global _path, _enabled
    path = str(Path(path).absolute())
    if path != _path or not _is_own():
        _open(path)
        _path = path
    found = os.fstat(_descriptor)
    if found.st_size and time.time() - found.st_mtime > _SURVIVED_S:
        os.ftruncate(_descriptor, 0)
    if not faulthandler.is_enabled():
        faulthandler.enable(_descriptor)
        _enabled = True


def stop(path: str | os.PathLike[str]) -> None:
    """Write no stacks any more, unless another path was given since. faulthandler stays enabled. Idempotent."""
    if _path == str(Path(path).absolute()) != os.devnull:
        write_to(os.devnull)


def _is_own() -> bool:
    """Return False if the application has closed the descriptor: its number may be that of a file which it writes."""
    try:
        return _file is not None and os.path.samestat(os.fstat(_descriptor), _file)
    except OSError:
        return False


def _open(path: str) -> None:
    """Let the descriptor belong to another file."""
    global _descriptor, _file
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    opened = os.open(path, flags, 0o600)
    if _is_own():
        os.dup2(opened, _descriptor, inheritable=False)
        os.close(opened)
    else:
        _descriptor = keep_high(opened)
        if _enabled:
            faulthandler.enable(_descriptor)
    _file = os.fstat(_descriptor)


def _in_child() -> None:
    """Leave the file to the parent."""
    with suppress(OSError):
        if _path:
            stop(_path)


register_at_fork(after_in_child=_in_child)


def crash_signal(text: str) -> int | None:
    """Return the number of the signal that the first line of a file of stacks names; None for any other text."""
    found = _FATAL.match(text)
    name = _SIGNALS.get(found[1]) if found else None
    return None if name is None else int(getattr(signal, name))


def stacks_now(limit: int = 256 << 10) -> str:
    """Return the Python stacks of all threads, that of the main thread first. Waits for no lock."""
    names, found = os_threads.thread_names(), list[str]()
    with os_threads.frames() as frames:
        for ident in sorted(frames, key=lambda ident: ident != threading.main_thread().ident):
            now = "Current thread" if ident == os_threads.get_ident() else "Thread"
            found.append(f"{now} 0x{ident:016x} [{_printable(names.get(ident, ''))}] (most recent call first):")
            found += [*_lines(frames[ident], _MOST_FRAMES), ""]
        frames.clear()  # a cycle with the frame of this function
    text = "\n".join([*found, ""])
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def main_stack() -> str:
    """Return the stack of the main thread, to be shown when it is a second old. Waits for no lock."""
    idents = (each.main_thread().ident for each in (threading, os_threads._threading))  # gevent changes the first one
    with os_threads.frames() as frames:
        innermost = next((frames[ident] for ident in idents if ident in frames), None)
        frames.clear()
        lines = [] if innermost is None else _lines(innermost, _MOST_MAIN_FRAMES)
    return "\n".join(["Main thread in the last second (most recent call first):", *lines, ""]) if lines else ""


def _lines(innermost: FrameType, most: int) -> list[str]:
    lines = []
    for frame, line in islice(walk_stack(innermost), most):
        code = frame.f_code
        lines.append(f'  File "{_printable(code.co_filename)}", line {line or "???"} in {_printable(code.co_name)}')
    return [*lines, "  ..."] if len(lines) == most else lines


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
