"""Python stacks of this process: written when a fatal signal ends it, or returned as text while it runs.

SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL end a process without an exception. A handler in C writes the stacks of all
Python threads to a file and to stderr, then the signal has its previous effect: exit status, core dump and the handlers
of others stay as they were. It also works for a signal in a thread of C++ code, and for a stack overflow in the thread
that installed it. Without the C extension (``MONITEL_NO_EXTENSIONS=1``, no compiler, not Linux) there is no handler.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel import os_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Crash", "check", "install", "read_crash", "stacks_now", "uninstall", "use_alternate_stack"]

_c: Any = None
if os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    with suppress(ModuleNotFoundError):  # any other ImportError is a fault that must be raised
        _c = import_module("monitel._crash_c")

_NAMES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))  # Windows has no SIGBUS
_MOST_FRAMES = 100  # of a thread, as in faulthandler
_SURVIVED_S = 60  # seconds after a signal
_CUT = "\n... (cut)\n"

_path = ""


def install(path: str | os.PathLike[str]) -> bool:
    """Write the stacks to a file when a signal ends this process. A later call replaces the path.

    The file is made when that happens, with mode 0600; it is not opened through a symbolic link, and has at most
    256 KiB. stderr has the stacks once: from faulthandler if it is enabled for stderr, else from the handler.

    A signal that the application ignores or handles in Python is left alone. So is a forked child: there the signal has
    its previous effect. Callable from any thread; see :func:`use_alternate_stack` for overflows of the stack.

    Args:
        path: The file, in an existing folder.

    Returns:
        True if a handler is installed for at least one signal; without the C extension False.

    Raises:
        ValueError: The path is longer than 4,095 bytes, or contains a null byte.

    Example:
        >>> from monitel import crash_stacks
        >>> installed = crash_stacks.install("stacks.txt")
        >>> crash_stacks.uninstall("stacks.txt")
    """
    global _path
    if _c is None:
        return False
    absolute = str(Path(path).absolute())
    handled = [number for number in _SIGNALS if signal.getsignal(number) not in {signal.SIG_DFL, None}]
    left = tuple(int(number) for number in _SIGNALS if number not in handled)
    found = _c.install(os.fsencode(absolute), left, sys.__stderr__ is not None)
    _path = absolute
    return bool(found)


def use_alternate_stack() -> None:
    """Give the calling thread a stack for the handler, so that an overflow of its stack can be recorded.

    Call it in the main thread, before or after :func:`install`, which does the same for the thread that calls it. Only
    the first thread gets the stack. Idempotent.
    """
    if _c is not None:
        _c.use_alternate_stack()


def uninstall(path: str | os.PathLike[str]) -> None:
    """Restore the previous effect of the signals, unless another path was installed since. Idempotent.

    Below a handler that was installed later, the handler stays, and does nothing.
    """
    global _path
    if _c is not None and _path == str(Path(path).absolute()):
        _path = ""
        _c.uninstall()


def check() -> None:
    """Install the handler again where another library has removed it, for instance by ``faulthandler.disable()``.

    If the process has survived a signal for a minute, because another handler recovered from it, remove the file.
    Does nothing without :func:`install`. Cheap; callable from any thread.
    """
    if _path and _c.check(_SURVIVED_S):
        with suppress(OSError):
            Path(_path).unlink()


@dataclass(frozen=True)
class Crash:
    """A fatal signal, as the handler has recorded it.

    Attributes:
        signal: Its number.
        code: ``si_code`` of the signal: above zero if the kernel has raised it.
        address: The address of a fault; None for a signal that a process has sent.
        sender: The process that has sent the signal, which may be this one; None for a fault.
        thread: The kernel's number of the thread that received it.
        time_ns: Time of the signal, Unix ns.
    """

    signal: int
    code: int
    address: int | None
    sender: int | None
    thread: int
    time_ns: int


_CRASH = re.compile(
    r"fatal signal (\d{1,3}) \(SIG[A-Z]{1,8}\), code (-?\d{1,10}), (?:address 0x([0-9a-f]{1,16})|sender (\d{1,10}))"
    r", thread (\d{1,10}), time (\d{1,12})\.(\d{9})(?!\S)",
    re.ASCII,
)


def read_crash(text: str) -> Crash | None:
    """Return the signal that the first line of a file of stacks describes; None for any other text.

    Example:
        >>> from monitel.crash_stacks import read_crash
        >>> line = "fatal signal 11 (SIGSEGV), code 1, address 0x10, thread 7, time 1790000000.000000001"
        >>> read_crash(line).address
        16
    """
    found = _CRASH.match(text)
    if found is None:
        return None
    number, code, address, sender, thread, seconds, rest = found.groups()
    return Crash(
        int(number),
        int(code),
        None if address is None else int(address, 16),
        None if sender is None else int(sender),
        int(thread),
        int(seconds) * 10**9 + int(rest),
    )


def stacks_now(limit: int = 256 << 10) -> str:
    """Return the Python stacks of all threads of this process, that of the main thread first.

    Reads no file and waits for no lock. Callable from any thread.

    Args:
        limit: The largest length, in characters.

    Example:
        >>> from monitel.crash_stacks import stacks_now
        >>> stacks_now().splitlines()[0].endswith("[MainThread] (most recent call first):")
        True
    """
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
