"""Scripts that install the handler for crashes, and crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from monitel.crash_stacks import Crash, read_crash

if TYPE_CHECKING:
    from pathlib import Path

_SWITCH = "MONITEL_NO_EXTENSIONS"
_pure = os.environ.get(_SWITCH, "0") not in {"", "0"}
_built = find_spec("monitel._crash_c") is not None or os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1"
needs_c = pytest.mark.skipif(_pure or not _built, reason=f"monitel._crash_c is not built, or {_SWITCH} is set")

#: Start of each script. The main thread crashes in ``crashing``, while another one waits in ``waiting``.
PRELUDE = """\
import ctypes, faulthandler, os, signal, subprocess, sys, threading
from monitel import crash_stacks

libc = ctypes.CDLL(None)
FILE = os.path.abspath("stacks")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def waiting(ready, more):
    ready.set()
    more.wait()

def crashing(number=signal.SIGSEGV):
    if number == signal.SIGSEGV:
        ctypes.memset(8, 0, 1)
    os.kill(os.getpid(), number)
    os._exit(99)

def install(*_):
    assert crash_stacks.install(FILE)

def into_file():
    faulthandler.enable(open("other", "w"))

def thread_of_c(function=libc.abort, argument=None):
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(function, ctypes.c_void_p), argument)
    libc.pthread_join(thread, None)

_ready = threading.Event()
threading.Thread(target=waiting, args=[_ready, threading.Event()], daemon=True).start()
_ready.wait()
"""


@dataclass(frozen=True)
class Ended:
    """The end of a script: its status, its output, and the files that it wrote."""

    status: int
    lines: list[str]
    stderr: str
    file: str
    other: str

    @property
    def crash(self) -> Crash:
        """The signal that the file describes."""
        found = read_crash(self.file)
        assert found is not None, self.file
        return found


def stacks_in(text: str) -> int:
    """Return the number of times that a text has the stacks of both threads, in complete lines."""
    crashing, waiting = text.count(" in crashing\n"), text.count(" in waiting\n")
    assert crashing == waiting, text
    return crashing


def crash(
    folder: Path, script: str, *, options: tuple[str, ...] = (), pure: bool = False, stderr: str = "pipe"
) -> Ended:
    """Run a script to its end, with a hard timeout.

    Args:
        folder: The working directory.
        script: Its text after the prelude.
        options: Of the interpreter.
        pure: Without the C extensions.
        stderr: ``"pipe"``, ``"file"`` or ``"closed"``.
    """
    path = folder / "script.py"
    path.write_text(PRELUDE + script, encoding="utf-8")
    command = [sys.executable, *options, str(path)]
    if stderr != "pipe":
        command = ["sh", "-c", 'exec "$0" "$@" 2>' + ("stderr" if stderr == "file" else "&-"), *command]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, _SWITCH: "1" if pure else "0", "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    files = [folder / name for name in ("stderr", "stacks", "other")]
    logged, file, other = (path.read_text(errors="replace") if path.exists() else "" for path in files)
    return Ended(process.returncode, printed.splitlines(), errors if stderr == "pipe" else logged, file, other)
