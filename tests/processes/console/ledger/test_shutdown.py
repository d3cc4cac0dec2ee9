"""The end of a pipeline and of a process is not a step, whoever ends it and whenever; and the ledger in a terminal."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.processes.promises.recorded_runs import Commands, commands
from tests.support.scripts import write_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

__all__ = ["commands"]

#: An event handler that takes 0.5 s at the end of the run.
SLOW = """\
import atexit, threading
def wait(event):
    if event.name == "run.ended":
        time.sleep(0.5)
def train():
    monitel.register_event_handler(wait)
    begin = time.monotonic_ns()
    monitel.set_step(1)
    time.sleep(0.2)
    return time.monotonic_ns() - begin
"""
CONFIGURE = 'monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": "run-7"})'
ENDS = {
    "with": f"with {CONFIGURE}:\n    ns = train()\nprint(ns)\n",
    "exit": f"{CONFIGURE}\nprint(train())\n",
    "exit function": f"{CONFIGURE}\natexit.register(time.sleep, 0.5)\nprint(train())\n",
    "waiting for a thread": f"{CONFIGURE}\nprint(train())\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n",
    "another thread has trained": (
        f"{CONFIGURE}\nthread = threading.Thread(target=lambda: print(train()))\nthread.start()\nthread.join()\n"
        "atexit.register(time.sleep, 0.5)\n"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_everything_after_the_training_is_shutdown(train: Run, commands: Commands, end: str) -> None:
    """The handler of the last event, waiting for threads, and the functions of the exit are not productive."""
    events = "1" if end in {"with", "exit"} else "0"
    ended = train(SLOW + ENDS[end], env={"MONITEL_RUN_EVENTS": events})
    activities = commands.run_of("run-7")["activities"]
    assert {"startup", "step", "shutdown"} == {*activities}
    assert activities["shutdown"] >= (0.3 if end == "waiting for a thread" else 0.5)  # it has slept for a moment before
    assert activities["step"] - int(ended.stdout) / 1e9 < 0.5 + activities["shutdown"]
    assert activities["step"] >= 0.2


def test_thread_that_outlives_the_main_thread_still_trains(train: Run, commands: Commands) -> None:
    """The end of the main thread is not the end of the training."""
    script = "def train():\n    monitel.set_step(1)\n    time.sleep(0.5)\n"
    train("import threading\n" + script + f"{CONFIGURE}\nthreading.Thread(target=train).start()\n")
    activities = commands.run_of("run-7")["activities"]
    assert (True, True) == (activities["step"] >= 0.5, "shutdown" in activities)


def printed_in_terminal(folder: Path, columns: int, **variables: str) -> list[str]:
    """Run a job with a terminal as its stderr, and return the lines of its ledger."""
    terminal, stderr = os.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    job = (
        CONFIGURE
        + '\nwith monitel.activity("data"):\n    time.sleep(monitel.ledger().elapsed_ns / 1e9 + 0.2)\n'
        + "monitel.set_step(1)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    with subprocess.Popen(
        [sys.executable, str(write_script(folder, job))],
        cwd=folder,
        env={**environment, "TERM": "xterm", **variables},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    ) as process:
        os.close(stderr)
        found = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 65536):
                found += part
        os.close(terminal)
        assert 0 == process.wait(120)
    lines = found.decode().replace("\r\n", "\n").splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("monitel ledger: ")) :]


def test_job_prints_a_bar_in_a_terminal(tmp_path: Path) -> None:
    """The bar has the width of the terminal, less its last column; TERM=dumb gets one plain line."""
    first, *lines = printed_in_terminal(tmp_path, 50)
    assert re.fullmatch(r"monitel ledger: \d+(\.\d+)? m?s", first)
    assert "\x1b[31m" in "".join(lines)
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    assert (49, True) == (len(plain[0]), all(line.isprintable() and len(line) <= 49 for line in plain))
    assert re.search(r"\d+ % of the time went into waiting for data$", " ".join(" ".join(plain[1:]).split()))
    (line,) = printed_in_terminal(tmp_path, 50, TERM="dumb")
    assert line.isprintable()
