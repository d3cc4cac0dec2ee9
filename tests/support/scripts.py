"""Scripts in Python processes: run to their end, or started and watched."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.forkserver import Forked, can_fork

Process = subprocess.Popen[str]

#: The first lines of each script.
PRELUDE = """\
import os, sys, time
import monitel, monitel_otlp
from monitel import COUNT, MEAN, SUM, Stat

"""
#: A line that writes ``ready``; the test waits for it before it sends a signal. A handler may write too: a print() that
#: interrupts another one raises RuntimeError.
READY = 'os.write(1, b"ready\\n")\n'

#: A line that prints the time (monotonic, seconds).
PRINT_TIME = "print(time.monotonic(), flush=True)\n"
#: A pipeline that sends to the URL in the first argument, at exit only.
CONFIGURE = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
"""
#: Ten closed windows, an open one, and an event.
RECORD = """\
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM], 60.0)
for number in range(10):
    loss.add(number)
    clock.advance(60)
loss.add(10)  # in a window that is still open
clock.advance(1)
monitel.emit("checkpoint", step=10)
"""
TRAIN = CONFIGURE + RECORD
_HIDING = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if f"{{name}}.".startswith(tuple(f"{{each}}." for each in {})) else found(name, path, target)
PathFinder.find_spec = find_spec
"""
#: The values of ``loss.count`` and the names of the records that RECORD makes.
RECORDED = ([*range(1, 12)], ["checkpoint"])


@dataclass(frozen=True)
class Ended:
    status: int  # exit status; negative for a signal
    stdout: str  # output
    stderr: str  # error output
    at: float  # time of the end (monotonic, seconds)

    @property
    def exit_s(self) -> float:
        """The seconds to the end from the time that the script has printed last; see PRINT_TIME."""
        return self.at - float(self.stdout.split()[-1])


def start_python(
    folder: Path, arguments: Sequence[object], env: Mapping[str, str] | None = None, *, fresh: bool = False
) -> Process:
    """Start Python with these arguments and further variables in a new session, with pipes of text.

    With ``fresh`` in a new interpreter, rather than forked from a server that has imported foreign packages.
    """
    words, environment = [*map(str, arguments)], {**os.environ, **(env or {})}
    if not fresh and can_fork(words, environment):
        return Forked(folder, words, environment)
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def started(
    folder: Path, *arguments: object, env: Mapping[str, str] | None = None, fresh: bool = False
) -> Iterator[Process]:
    """Start Python as :func:`start_python` does, and kill its process group at the end of the block."""
    process = start_python(folder, arguments, env, fresh=fresh)
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipes


def write_script(folder: Path, script: str) -> Path:
    new = folder / "train.new"
    new.write_text(PRELUDE + script, encoding="utf-8")
    return new.replace(folder / "train.py")  # another process may be about to read it


def without(*packages: str) -> dict[str, str]:
    """Return the variables of Python processes that cannot find packages of these names."""
    folder = Path("without").absolute()
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HIDING.format(packages), encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def finish(process: Process, text: str | None = None, *, timeout: float = 120) -> Ended:
    """Write text to a process, and wait for its end; fail the test after ``timeout`` seconds."""
    try:
        stdout, stderr = process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        pytest.fail(f"the script hangs; its output is {stdout!r}, {stderr!r}")
    ended = Ended(process.returncode, stdout, stderr, time.monotonic())
    sys.stdout.write(stdout)  # pytest shows both if an assertion fails
    sys.stderr.write(stderr)
    return ended


def read_line(process: Process) -> str:
    """Return the next line that a process prints, without its end."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def write_line(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def wait_until_ready(process: Process) -> None:
    assert "ready" == read_line(process), finish(process).stderr


@dataclass(frozen=True)
class Run:
    """Runs Python in a folder; the fixtures ``run`` and ``train`` are such functions."""

    folder: Path

    def __call__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        returncode: int = 0,
        timeout: float = 120,
        fresh: bool = False,
    ) -> Ended:
        """Run Python with these arguments; it must end in time and with the expected status."""
        with started(self.folder, *arguments, env=env, fresh=fresh) as process:
            ended = finish(process, timeout=timeout)
        assert returncode == ended.status, ended.stderr
        return ended


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def train(run: Run, tmp_path: Path) -> Run:
    def train(script: str, *arguments: object, **options: Any) -> Ended:
        return run(write_script(tmp_path, script), *arguments, **options)

    return train  # type: ignore[return-value]  # as Run, with a script in front
