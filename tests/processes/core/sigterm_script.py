"""Scripts that install a handler for SIGTERM and receive the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_SWITCH = "MONITEL_NO_EXTENSIONS"
_pure = os.environ.get(_SWITCH, "0") not in {"", "0"}
_built = find_spec("monitel._sigterm_c") is not None or os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1"
needs_c = pytest.mark.skipif(_pure or not _built, reason=f"monitel._sigterm_c is not built, or {_SWITCH} is set")

#: Start of each script; ``end`` and ``flush`` print the thread in which they are called.
PRELUDE = """\
import asyncio, ctypes, faulthandler, os, signal, sys, threading, time
from monitel import sigterm

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def end(timeout):
    say("end", threading.current_thread().name, timeout)

def flush(timeout):
    say("flush", threading.current_thread().name, timeout)

def blocked(seconds, library=ctypes.CDLL):  # in C, without a return to Python after a signal
    library(None).system(f"echo ready; exec sleep {seconds} >/dev/null 2>&1".encode())

def live_on(number=5):  # in Python, for so many seconds
    say("ready")
    deadline = time.monotonic() + number
    while time.monotonic() < deadline:
        signal.sigtimedwait([signal.SIGUSR1], 0.05)

def wait_for(pid):
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)

handler = sigterm.SigtermHandler(end, flush)
"""
INSTALL = "handler.install()\n"
IN_MAIN, IN_THREAD, FLUSHED = "end MainThread 2.0", "end monitel-sigterm 1.5", "flush MainThread 2.0"
LATER = """\
before = signal.getsignal(signal.SIGTERM)

def later(number, frame):
    say("later")
    before(number, frame)

signal.signal(signal.SIGTERM, later)
"""


@dataclass(frozen=True)
class Ended:
    """The end of a script: its exit status, its lines, and the seconds from SIGTERM to its end."""

    status: int
    lines: list[str]
    seconds: float
    stderr: str


def terminate(folder: Path, twin: str, script: str, *, signals: int = 1) -> Ended:
    """Run a script, with the C handler or without, until it prints ``ready``, send SIGTERM, and wait for its end."""
    path = folder / "script.py"
    path.write_text(PRELUDE + script, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", path],  # Python 3.12 warns of forks beside threads
        cwd=folder,
        env={**os.environ, _SWITCH: "0" if twin == "c" else "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        begin = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
        seconds = time.monotonic() - begin
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including sleeping children
        process.wait()
    assert "ready\n" == first, stderr
    return Ended(process.returncode, stdout.splitlines(), seconds, stderr)
