"""Training scripts that get SIGTERM, with monitel and without."""

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.receiver import Receiver
from tests.support.scripts import finish, started

PRELUDE = """\
import os, signal, sys, threading, time

def ready():
    print("ready", flush=True)

def train():  # until SIGTERM, for some seconds at most
    global steps
    if steps == 3:
        ready()
    steps += 1
    if "with" in sys.argv:
        monitel.emit("step")
    signal.sigtimedwait([signal.SIGUSR2], 0.02)
    assert time.monotonic() < deadline, "SIGTERM has no effect"

steps, deadline = 0, time.monotonic() + 100

def begin():
    global loss, monitel, pipeline
    if "with" in sys.argv:
        import monitel, monitel_otlp
        pipeline = monitel_otlp.configure(endpoint=sys.argv[2], spool_dir="spool", export_interval=3600.0)
        loss = monitel.stat("loss", [monitel.COUNT], 3600.0)
        loss.add(1)
        monitel.emit("begin")

def end():
    print("end", flush=True)
    if "with" in sys.argv:
        monitel.emit("end")

"""


@dataclass(frozen=True)
class Ended:
    """Result of a run: exit status, words on stdout, stderr, files in its folder, and seconds from signal to end."""

    status: int
    stdout: list[str]
    stderr: str
    files: list[str]
    seconds: float


def run(
    folder: Path,
    script: str,
    *arguments: str,
    launcher: Sequence[str] = (),
    workers: int = 1,
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a script until each worker prints ``ready``, and send signals to the started program."""
    folder.mkdir()
    path = folder / "train.py"
    path.write_text(PRELUDE + script)
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(variables or {})}
    command = ["-W", "ignore", *launcher, path, *arguments]
    with started(folder, *command, env=environment, fresh=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines.count("ready") == workers:
                break
        begin = time.monotonic()
        for each in signals:
            process.send_signal(each)
            if each is not signals[-1]:
                lines.append(process.stdout.readline().strip())
        ended = finish(process)
    assert workers == lines.count("ready"), ended.stderr
    paths = [each.relative_to(folder) for each in folder.rglob("*") if each.is_file()]
    files = [str(each) for each in paths if "ledgers" not in each.parts]  # a run keeps its ledger
    files = sorted(re.sub(r"checkpoint-\d+", "checkpoint", each) for each in files)  # the step varies
    words = [line for line in [*lines, *ended.stdout.splitlines()] if line.isalpha()]  # without the losses of a trainer
    return Ended(ended.status, words, ended.stderr, files, ended.at - begin)


def compare(folder: Path, receiver: Receiver, script: str, *, workers: int = 1, **options: Any) -> Ended:
    """Run a script with monitel and without; status, output, files must match, and everything must arrive."""
    options["workers"] = workers
    without = run(folder / "without", script, "without", receiver.url, **options)
    found = run(folder / "with", script, "with", receiver.url, **options)
    assert (without.status, without.files) == (found.status, found.files), found.stderr
    assert sorted(without.stdout) == sorted(found.stdout), found.stderr
    assert workers == len(receiver.records("begin"))
    assert [1] * workers == receiver.values("loss.count")
    assert found.seconds <= without.seconds + 20  # two of them for the delivery
    return found
