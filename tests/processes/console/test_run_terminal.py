"""An interactive shell controls a job with ``monitel run`` as without."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE
from tests.processes.console.commands import PREFIXES, PYTHON, SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.parametrize("prefix", PREFIXES, ids=["without", "with"]),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]

_PROMPT = "next> "


class Terminal:
    """An interactive shell in a terminal.

    Args:
        descriptor: The other end of the terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._seen = ""

    def type(self, text: str) -> None:
        """Type text."""
        os.write(self.descriptor, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until the terminal shows something, and forget everything up to there."""
        deadline = time.monotonic() + DEADLINE
        while (found := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self._seen!r}"
            self._seen += os.read(self.descriptor, 65536).decode(errors="replace")
        self._seen = self._seen[found.end() :]
        return found

    def status(self) -> str:
        """Return the exit status of the last job, as the shell has it."""
        self.type("echo status=$?\n")
        return self.expect(r"status=(\d+)\r\n")[1]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A shell that has just started."""
    with _shell() as terminal:
        yield terminal


@contextmanager
def _shell() -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        env={**os.environ, "PS1": _PROMPT, "TERM": "dumb", "HISTFILE": ""},
    )
    os.close(theirs)
    try:
        terminal = Terminal(ours)
        terminal.expect(_PROMPT)
        terminal.type("ulimit -c 0\n")
        terminal.expect(_PROMPT)
        yield terminal
    finally:
        os.close(ours)  # it hangs up
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(DEADLINE)


def words(*command: str) -> str:
    """Return a command line for the shell."""
    return shlex.join(command)


@pytest.mark.parametrize(("key", "status"), [("\x03", "130"), ("\x1c", "131")])
def test_key_ends_the_job(terminal: Terminal, prefix: tuple[str, ...], key: str, status: str) -> None:
    """Ctrl-C and Ctrl-backslash end the command, and the shell shows the same status."""
    terminal.type(words(*prefix, "sh", "-c", "echo rea''dy; exec sleep 100") + "\n")
    terminal.expect("ready\r\n")
    terminal.type(key)
    terminal.expect(_PROMPT)
    assert status == terminal.status()


def test_key_is_received_once(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """A command that handles Ctrl-C, such as an interactive Python, goes on."""
    terminal.type(words(*prefix, *PYTHON, SIGNALS) + "\n")
    terminal.expect(r"\d+\r\n")
    for _ in range(2):
        terminal.type("\x03")
        terminal.expect("SIGINT\r\n")
    fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    found = terminal.expect(r"(?s)^(.*)SIGWINCH\r\n")
    assert "SIGINT" not in found[1]
    terminal.type("\x04")
    found = terminal.expect(rf"(?s)^(.*){_PROMPT}")
    assert "SIG" not in found[1]
    assert "0" == terminal.status()


def test_job_is_stopped_and_continued(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """Ctrl-Z gives the terminal to the shell, ``fg`` gives it back, twice; the command reads its input."""
    terminal.type(words(*prefix, "sh", "-c", "echo rea''dy; exec cat") + "\n")
    terminal.expect("ready\r\n")
    for number in range(2):
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.expect(_PROMPT)
        assert "148" == terminal.status()
        terminal.type("fg\n")
        terminal.expect("cat")
        terminal.type(f"line {number}\n")
        terminal.expect(f"line {number}\r\n")
        terminal.expect(f"line {number}\r\n")  # the second one is the output of cat
    terminal.type("\x04")
    terminal.expect(_PROMPT)
    assert "0" == terminal.status()


def test_stopped_job_continues_in_the_background(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """``bg`` and ``wait`` work, and the status is that of the command."""
    script = (
        "import os, time\nprint('ready', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nraise SystemExit(5)\n"
    )
    terminal.type(words(*prefix, *PYTHON, script) + "\n")
    terminal.expect("ready\r\n")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.type("bg; touch go; wait %1; echo status=$?\n")
    assert "5" == terminal.expect(r"status=(\d+)\r\n")[1]


def test_command_that_ignores_ctrl_z(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """The job is not stopped: the shell does not get the terminal."""
    script = "trap '' TSTP; echo rea''dy; read line; echo got $line"
    terminal.type(words(*prefix, "sh", "-c", script) + "\n")
    terminal.expect("ready\r\n")
    terminal.type("\x1a")
    terminal.type("input\n")
    found = terminal.expect(r"(?s)^(.*)got input\r\n")
    assert "Stopped" not in found[1]
    terminal.expect(_PROMPT)
    assert "0" == terminal.status()


def test_command_that_stops_itself(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """A pager or an editor does that: the shell gets the terminal."""
    terminal.type(words(*prefix, "sh", "-c", "kill -TSTP $$; echo contin''ued; exit 6") + "\n")
    terminal.expect("Stopped")
    terminal.expect(_PROMPT)
    terminal.type("fg\n")
    terminal.expect("continued\r\n")
    terminal.expect(_PROMPT)
    assert "6" == terminal.status()


def test_job_in_the_background_is_stopped_at_input(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """A job in the background that reads the terminal stops, and reads it in the foreground."""
    terminal.type(words(*prefix, "sh", "-c", "read line; echo got $line") + " &\n")
    terminal.expect(_PROMPT)
    terminal.type("until jobs | grep -q Stopped; do :; done; echo stop''ped\n")
    terminal.expect("stopped\r\n")
    terminal.type("fg\n")
    terminal.expect("read line")
    terminal.type("input\n")
    terminal.expect("got input\r\n")


def test_kill_of_a_job_arrives_once(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """``kill %1`` of a shell signals the group."""
    script = SIGNALS.replace("sys.stdin.read()", "\nwhile True: signal.pause()")
    terminal.type(words(*prefix, *PYTHON, script.replace("print(os.getpid()", "print('rea' 'dy'")) + " &\n")
    terminal.expect("ready\r\n")
    for name in ("TERM", "USR1", "TERM"):
        terminal.type(f"kill -{name} %1\n")
        terminal.expect(f"SIG{name}\r\n")
    terminal.type("kill -USR2 %1\n")
    found = terminal.expect(r"(?s)^(.*)SIGUSR2\r\n")
    assert "SIGTERM" not in found[1]
    terminal.type("kill -9 %1; wait %1; echo status=$?\n")
    assert "137" == terminal.expect(r"status=(\d+)\r\n")[1]


def test_settings_of_the_terminal_stay(terminal: Terminal, prefix: tuple[str, ...]) -> None:
    """The command sees the terminal in the foreground, and may change its settings."""
    terminal.type("stty -a | cksum; stty -echoctl\n")
    terminal.expect(_PROMPT)
    script = "import os, sys; print('foreground', os.tcgetpgrp(0) == os.getpgrp(), [os.isatty(n) for n in range(3)])"
    terminal.type(words(*prefix, *PYTHON, script) + "\n")
    terminal.expect(re.escape("foreground True [True, True, True]\r\n"))
    terminal.type(words(*prefix, "stty", "rows", "33", "intr", "^G") + "; stty -a\n")
    terminal.expect("rows 33")
    terminal.expect(r"intr = \^G")
    terminal.expect("-echoctl")


def test_terminal_that_hangs_up(prefix: tuple[str, ...]) -> None:
    """The command receives SIGHUP once, and may end in its way."""
    script = (
        "import os, signal, time\nseen = []\nsignal.signal(signal.SIGHUP, lambda *_: seen.append('HUP'))\n"
        "print('ready', flush=True)\nwhile not seen: signal.pause()\n"
        "time.sleep(0.3)\nopen('seen', 'w').write(' '.join(seen))\nos.rename('seen', 'done')\n"
    )
    with _shell() as terminal:
        terminal.type(f"exec {words(*prefix, *PYTHON, script)}\n")
        terminal.expect("ready\r\n")
        leader = os.tcgetpgrp(terminal.descriptor)
        assert leader > 0
        fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        os.killpg(leader, signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE
        while not Path("done").exists():
            assert time.monotonic() < deadline
            select.select([], [], [], 0.02)
    assert "HUP" == Path("done").read_text()
