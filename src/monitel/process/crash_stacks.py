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
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.process import os_threads
from monitel.process.descriptors import keep_high
from monitel.process.fork import register_at_fork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["check", "crash_signal", "install", "stacks_now", "uninstall"]

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
_CUT = "\n... (cut)\n"

_path = ""  # of the file; empty without one
_descriptor = -1  # of faulthandler, whatever file it belongs to
_nowhere = -1  # the descriptor of /dev/null: to open it again at the end might wait for a slow disk
_file: os.stat_result | None = None
_enabled = False  # by this module


def install(path: str | os.PathLike[str]) -> bool:
    """Write the stacks to a file when a signal ends this process; False if the application has enabled faulthandler.

    A later call replaces the path. An overflow of the stack is recorded in the thread that calls this.
    """
    global _path
    path = str(Path(path).absolute())
    _write_to(path)
    _path = path
    return _enable()


def uninstall(path: str | os.PathLike[str]) -> None:
    """Write no stacks any more, unless another path was installed since. faulthandler stays enabled. Idempotent."""
    global _path, _file
    if _path and _path == str(Path(path).absolute()):
        _path = ""
        if _has_descriptor():
            os.dup2(_nowhere, _descriptor, inheritable=False)
            _file = os.fstat(_descriptor)


def check() -> None:
    """Enable faulthandler again where the application has disabled it, or has closed the descriptor.

    Empty the file if the process has survived a signal, because another handler recovered from it.
    """
    if not _path:
        return
    with suppress(OSError):
        if not _has_descriptor():
            _write_to(_path)
        found = os.fstat(_descriptor)
        if found.st_size and time.time() - found.st_mtime > _SURVIVED_S:
            os.ftruncate(_descriptor, 0)
        _enable()


def _enable() -> bool:
    global _enabled
    if not faulthandler.is_enabled():
        faulthandler.enable(_descriptor)
        _enabled = True
    return _enabled


def _has_descriptor() -> bool:
    """Return False if there is no descriptor, or if the application has closed it: its number may be another file's."""
    global _descriptor
    if _descriptor >= 0:
        try:
            if _file is not None and os.path.samestat(os.fstat(_descriptor), _file):
                return True
        except OSError:
            pass
        _descriptor = -1
        faulthandler.disable()
    return False


def _write_to(path: str) -> None:
    """Let the descriptor belong to another file."""
    global _descriptor, _nowhere, _file
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    opened = os.open(path, flags, 0o600)
    if _has_descriptor():
        os.dup2(opened, _descriptor, inheritable=False)
        os.close(opened)
    else:
        _descriptor, _nowhere = keep_high(opened), keep_high(os.open(os.devnull, os.O_WRONLY))
    _file = os.fstat(_descriptor)


def _in_child() -> None:
    """Leave the file to the parent."""
    with suppress(OSError):
        uninstall(_path)


register_at_fork(after_in_child=_in_child)


def crash_signal(text: str) -> int | None:
    """Return the number of the signal that the first line of a file of stacks names; None for any other text."""
    found = _FATAL.match(text)
    name = _SIGNALS.get(found[1]) if found else None
    return None if name is None else int(getattr(signal, name))


def stacks_now(limit: int = 256 << 10) -> str:
    """Return the Python stacks of all threads, that of the main thread first. Waits for no lock."""
    frames = dict(os_threads.frames())
    names = os_threads.names()
    order = sorted(frames, key=lambda ident: ident != threading.main_thread().ident)
    found: list[str] = []
    length = 0
    for ident in order:
        for line in _lines(ident, names.get(ident, ""), frames[ident]):
            found.append(line)
            length += len(line)
            if length > limit:
                return "".join(found)[: max(limit - len(_CUT), 0)] + _CUT
    return "".join(found)


def _lines(ident: int, name: str, frame: FrameType | None) -> Iterator[str]:
    """Yield the lines of a thread, as faulthandler writes them."""
    now = "Current thread" if ident == os_threads.get_ident() else "Thread"
    yield f"{now} 0x{ident:016x} [{_printable(name)}] (most recent call first):\n"
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        code, line = frame.f_code, frame.f_lineno
        where = "???" if line is None else line
        yield f'  File "{_printable(code.co_filename)}", line {where} in {_printable(code.co_name)}\n'
        frame = frame.f_back
    else:
        yield "  ...\n"
    yield "\n"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
