"""The end of the process behind the screen: it does not depend on the threads of the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE

pytest.importorskip("textual", reason="the extra monitel-otlp[top] is not installed")

from monitel_otlp.terminal.ending import Ending  # it is an extra

if TYPE_CHECKING:
    from pathlib import Path

#: The screen with a thread that reads the terminal and never ends, like that of textual after some hangups.
_SPINNING = """
import sys, threading
from textual.drivers.linux_driver import LinuxDriver
read = LinuxDriver.run_input_thread
def spin(self):
    with open("pid", "w") as file:
        file.write("shown")
    read(self)
    threading.Event().wait()
LinuxDriver.run_input_thread = spin
join = threading.Thread.join
threading.Thread.join = lambda self, timeout=None: join(self, 0.2 if self.name == "textual-input" else timeout)
from monitel_otlp.__main__ import main
sys.exit(main(["top"]))
"""


def screen_in_a_terminal(folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the screen in a new terminal, and return the other end of it when the screen is shown."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    script = folder / "top.py"
    script.write_text(_SPINNING, encoding="utf-8")
    (folder / "boxes").mkdir(mode=0o700)
    env = {**os.environ, "TERM": "xterm", "MONITEL_BLACK_BOX_DIR": str(folder / "boxes")}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=env,
        cwd=folder,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  no other thread runs
    )
    os.close(inner)
    seen = b""
    while b"waiting for one" not in seen:
        seen += os.read(outer, 65536)
    return outer, process


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_it_whatever_its_threads_do(tmp_path: Path, number: signal.Signals) -> None:
    """A thread that never ends does not keep it, and the exit status is that of the signal."""
    outer, process = screen_in_a_terminal(tmp_path)
    try:
        reader = threading.Thread(target=_drain, args=(outer,), daemon=True)
        reader.start()
        process.send_signal(number)
        assert 128 + number == process.wait(DEADLINE)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def test_lost_terminal_ends_it_whatever_its_threads_do(tmp_path: Path) -> None:
    """A hangup leaves no process behind."""
    outer, process = screen_in_a_terminal(tmp_path)
    try:
        os.close(outer)
        assert process.wait(DEADLINE) > 0
    finally:
        process.kill()
        process.wait()


def _drain(descriptor: int) -> None:
    with suppress(OSError):
        while os.read(descriptor, 65536):
            pass


def test_threads_that_end_are_waited_for() -> None:
    """Then the process is not ended by force."""
    left: list[int] = []
    ending = Ending(patience=DEADLINE, leave=left.append)
    going = threading.Event()
    thread = threading.Thread(target=going.wait)
    thread.start()
    going.set()
    ending.finish(0)
    assert not thread.is_alive()
    assert not left


def test_thread_that_does_not_end_is_left() -> None:
    """The process ends with the given status when the patience is over."""
    left: list[int] = []
    forced, going = threading.Event(), threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        forced.set()

    ending = Ending(patience=0.05, leave=leave)
    thread = threading.Thread(target=going.wait)
    thread.start()
    try:
        ending.finish(129)
        assert forced.wait(DEADLINE)
        assert [129] == left
    finally:
        going.set()
        thread.join()
