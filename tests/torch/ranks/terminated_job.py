"""Training scripts that get SIGTERM, with monitel and without."""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.receiver import Receiver
from tests.support.scripts import finish, started

PRELUDE = """\
import os, signal, sys, threading, time

def ready():
    os.write(1, b"ready\\n")  # a signal handler that prints may interrupt it

def train():  # until SIGTERM, for some seconds at most
    global steps
    if steps == 3:
        ready()
    steps += 1
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


def compare(
    folder: Path,
    receiver: Receiver,
    script: str,
    *,
    launcher: Sequence[str] = (),
    workers: int = 1,
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run a script without monitel and with it; status, words and files must match, and everything must arrive.

    Each worker prints ``ready``; then the started program gets the signals. Returns the exit status.
    """
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **(variables or {})}
    ends, seconds = [], []
    for which in ("without", "with"):
        place = folder / which
        place.mkdir()
        (place / "train.py").write_text(PRELUDE + script)
        command = ["-W", "ignore", *launcher, place / "train.py", which, receiver.url]
        with started(place, *command, env=environment, fresh=True) as process:
            assert process.stdout is not None
            lines: list[str] = []
            while lines.count("ready") < workers and (line := process.stdout.readline()):
                lines.append(line.strip())
            begin = time.monotonic()
            for each in signals:
                process.send_signal(each)
                if each is not signals[-1]:
                    lines.append(process.stdout.readline().strip())
            ended = finish(process)
        seconds.append(ended.at - begin)
        assert workers == lines.count("ready"), ended.stderr
        paths = [each.relative_to(place) for each in place.rglob("*") if each.is_file()]
        files = sorted(str(each) for each in paths if "ledgers" not in each.parts)  # a run keeps its ledger
        ends.append((ended.status, sorted([*lines, *ended.stdout.splitlines()]), files))
    assert ends[0] == ends[1], ended.stderr
    assert workers == len(receiver.records("begin"))
    assert [1] * workers == receiver.values("loss.count")
    assert seconds[1] <= seconds[0] + 20  # two of them for the delivery
    return ended.status
