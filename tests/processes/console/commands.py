"""Commands, each run with and without ``monitel run``."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.scripts import Process, read_line, started

RUN = (sys.executable, "-m", "monitel_run", "run", "--")
PYTHON = (sys.executable, "-I", "-S", "-c")  # starts fast, and is not recorded

#: Prints each signal that it receives, until its input ends.
#: A signal that arrives just before a blocking call wakes that by a descriptor; otherwise it would be handled after it.
SIGNALS = """\
import os, select, signal, sys
def note(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, note)
woken, wakes = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(wakes)
print(os.getpid(), flush=True)
while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
    os.read(woken, 100)
"""


@dataclass(frozen=True)
class Outcome:
    """The end of a command."""

    status: int  # negative for a signal
    stdout: str
    stderr: str  # without the lines of ``monitel run``
    summary: str  # the lines of ``monitel run``

    @property
    def words(self) -> str:
        return " ".join(self.summary.split())


def outcome(command: Sequence[str], stdin: str = "", **options: Any) -> Outcome:
    usual = {"capture_output": True, "text": True, "timeout": 300, "start_new_session": True}
    ended = subprocess.run(command, input=stdin, check=False, **{**usual, **options})
    return Outcome(ended.returncode, ended.stdout, *split(ended.stderr))


def split(stderr: str) -> tuple[str, str]:
    begins = [begin for mark in ("monitel: ", "monitel run: ") if (begin := stderr.find(mark)) >= 0]
    begin = min(begins, default=len(stderr))
    return stderr[:begin], stderr[begin:]


def record(script: str, *options: str, arguments: Sequence[str] = (), **env: str) -> Outcome:
    Path("train.py").write_text(script)
    return outcome([*RUN[:-1], *options, "--", sys.executable, "train.py", *arguments], env={**os.environ, **env})


def both(
    command: Sequence[str], stdin: str = "", *, before: Sequence[str] = (), **options: Any
) -> tuple[Outcome, Outcome]:
    """Return the ends of a command without and with ``monitel run``, after the words of a program that starts it."""
    without, with_run = (outcome([*before, *prefix, *command], stdin, **options) for prefix in ((), RUN))
    assert not without.summary
    return without, with_run


def check_same(command: Sequence[str], stdin: str = "", **options: Any) -> Outcome:
    without, with_run = both(command, stdin, **options)
    assert without == Outcome(with_run.status, with_run.stdout, with_run.stderr, "")
    return with_run


def running(*command: str, **env: str) -> AbstractContextManager[Process]:
    return started(Path.cwd(), *RUN[1:], *command, env=env, fresh=True)


@contextmanager
def recording(**env: str) -> Iterator[tuple[Process, int]]:
    """Run a command that prints the signals that it receives; yield ``monitel run``, and the command's process id."""
    with running(*PYTHON, SIGNALS, **env) as process:
        yield process, int(read_line(process))


def rest(process: Process) -> list[str]:
    stdout, _ = process.communicate(timeout=60)
    assert 0 == process.returncode
    return stdout.split()


def pending(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return any(int(each.split()[1], 16) for each in lines if each.startswith("ShdPnd:"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
