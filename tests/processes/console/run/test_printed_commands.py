"""Each command that the summary prints does what it promises, in the same environment."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.inbox import DEADLINE, Answer
from tests.processes.console.commands import RUN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver

KILLED = """\
import os, signal, sys
import monitel
monitel.set_step(7)
monitel.emit("before")
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_job(folder: Path, *options: str, argument: str = "") -> str:
    """Run a job, and return the lines of the summary as one text."""
    (folder / "train.py").write_text(KILLED)
    command = [*RUN[:-1], *options, "--", sys.executable, "train.py", *([argument] if argument else [])]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE * 3, check=False)
    return " ".join(ended.stderr.split())


def run_printed(summary: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run the command for the telemetry on disk, with the address of a backend for the placeholder."""
    found = re.search(r"deliver with: monitel (replay \S+(?: --endpoint \S+)?)", summary)
    assert found, summary
    words = [url if word == "http://HOST:4318" else word for word in shlex.split(found[1])]
    return subprocess.run(
        [sys.executable, "-m", "monitel_otlp", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE * 3,
        check=False,
    )


def test_everything_on_disk_is_delivered_by_the_printed_command(receiver: Receiver, tmp_path: Path) -> None:
    """The events of the attempt are delivered too, from their separate spool."""
    summary = run_job(tmp_path)
    ended = run_printed(summary, tmp_path, receiver.url)
    assert 0 == ended.returncode, ended.stderr
    assert {"before", "attempt.started", "attempt.ended"} <= set(receiver.record_names())
    assert ["ledgers"] == [path.name for path in (tmp_path / "monitel-runs").iterdir()]


def test_printed_command_has_the_endpoint_that_was_an_option(receiver: Receiver, tmp_path: Path) -> None:
    """Without it the command would not know where to send."""
    away = [True]
    receiver.rule(lambda _: Answer(503) if away else None)
    summary = run_job(tmp_path, "--endpoint", receiver.url)
    assert "--endpoint http://HOST:4318" in summary
    away.clear()
    ended = run_printed(summary, tmp_path, receiver.url)
    assert 0 == ended.returncode, ended.stderr
    assert "before" in receiver.record_names()


def test_autopsy_is_printed_only_while_there_is_something_to_see(receiver: Receiver, tmp_path: Path) -> None:
    """After the delivery the event ``process.died`` says the same."""
    summary = run_job(tmp_path, argument="killed")
    found = re.search(r"monitel (autopsy \d+)", summary)
    assert found, summary
    command = [sys.executable, "-m", "monitel_otlp", *found[1].split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert 0 == ended.returncode, ended.stderr
    assert "SIGKILL" in ended.stdout
    delivered = run_job(tmp_path, "--endpoint", receiver.url, argument="killed")
    assert "process.died" in receiver.record_names()
    assert "see the event process.died" in delivered
    assert "autopsy" not in delivered
