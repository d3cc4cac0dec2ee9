"""The training script of these tests, and the comparison of its notes with what Prometheus and Loki have stored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.integration.conftest import Loki, Prometheus
from tests.integration.services import start_python
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE

# Epochs of 50 steps, as many as the first argument says; "told": until a line on stdin, and each end is printed.
TRAIN = """\
import json, os, random, sys, threading
import monitel, monitel_otlp

how_long = sys.argv[1]
over, pause = threading.Event(), threading.Event()
windows, events = [], []

def note(event):
    if event.window:
        windows.append(event.window)
    else:
        time_ns = round(event.timestamp.timestamp() * 10**6) * 1000
        events.append({"time_ns": time_ns, "severity": event.severity, "step": event.step, "data": dict(event.data)})

monitel.register_event_handler(note)
pipeline = monitel_otlp.configure(service_name="train", export_interval=0.3, spool_dir="spool", spans=True)
loss = monitel.Stat("train.loss", monitel.stats.definition.TORCHS, 0.05)
seconds = monitel.Stat("step.time", monitel.stats.definition.TORCHS, 0.1, unit="s", attributes={"split": "train"})
steps = 0

def epoch():
    global steps
    for _ in range(50):
        steps += 1
        monitel.set_step(steps)
        with seconds.time():
            pause.wait(0.004)
        loss.add(float("nan") if steps % 90 == 0 else random.gauss(1, 2))
    number = steps // 50
    severity = monitel.Severity.INFO if number % 3 else monitel.Severity.WARN
    monitel.emit("checkpoint", number=number, path=f"straße/{number}.pt", share=number / 8, severity=severity)

if how_long == "told":
    threading.Thread(target=lambda: sys.stdin.readline() and over.set(), daemon=True).start()
while not over.is_set() and how_long != str(steps // 50):
    with monitel.profiler.record_function("epoch"):
        epoch()
    if how_long == "told":
        print(steps // 50, flush=True)
pause.wait(0.12)  # the last windows end well after those before them
monitel.flush()
pipeline.force_flush(40)
pipeline.shutdown()
keys = ["start_ns", "end_ns", "count", "sum", "min", "max", "last"]
told = [{"name": each.name, **{key: getattr(each, key) for key in keys}} for each in windows]
accounts = {signal: [each.recorded, each.delivered] for signal, each in pipeline.account().items()}
print(json.dumps({
    "steps": steps, "dropped": pipeline.dropped, "accounts": accounts, "windows": told, "events": events
}))
"""


@dataclass
class Run:
    steps: int
    dropped: dict[str, int]
    accounts: dict[str, list[int]]  # of each signal, the items recorded and delivered
    windows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    stderr: str

    @property
    def checkpoints(self) -> list[int]:
        return list(range(1, self.steps // 50 + 1))

    @classmethod
    def of(cls, stdout: str, stderr: str) -> Run:
        return cls(**json.loads(stdout.splitlines()[-1]), stderr=stderr)


def train(folder: Path, *, epochs: int = 6, env: Mapping[str, str] | None = None) -> Run:
    """Train in a folder with further variables, to the end, which must be a good one."""
    with _started(folder, str(epochs), env) as process:
        stdout, _ = process.communicate(timeout=DEADLINE)
    return _ended(process, stdout, folder)


class Training:
    """A run that goes on until it is asked to end."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    @property
    def stderr(self) -> str:
        """Return its output so far; the run must be alive."""
        printed = (self._folder / "stderr").read_text()
        assert self._process.poll() is None, printed
        return printed

    def until(self, holds: Callable[[], object], what: str) -> None:
        wait_until(lambda: self.stderr is not None and holds(), what)

    def go_on(self, epochs: int) -> None:
        assert self._process.stdout is not None
        for _ in range(epochs):
            assert self._process.stdout.readline(), (self._folder / "stderr").read_text()

    def end(self) -> Run:
        stdout, _ = self._process.communicate("over\n", timeout=DEADLINE)
        return _ended(self._process, stdout, self._folder)


@contextmanager
def training(folder: Path, env: Mapping[str, str]) -> Iterator[Training]:
    with _started(folder, "told", env) as process:
        yield Training(process, folder)


@contextmanager
def _started(folder: Path, how_long: str, env: Mapping[str, str] | None) -> Iterator[subprocess.Popen[str]]:
    (folder / "train.py").write_text(TRAIN)
    with (folder / "stderr").open("w") as stderr:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        process = start_python(folder, "train.py", how_long, env={**os.environ, **(env or {})}, **streams)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _ended(process: subprocess.Popen[str], stdout: str, folder: Path) -> Run:
    stderr = (folder / "stderr").read_text()
    assert 0 == process.returncode, stderr
    return Run.of(stdout, stderr)


def check(prometheus: Prometheus, run: Run) -> None:
    """Prometheus has each window at its own end, and nothing else, and the counts add up, from zero on."""
    for name, series, unit in [("train.loss", "train_loss", ""), ("step.time", "step_time", "_seconds")]:
        own = sorted((each for each in run.windows if each["name"] == name), key=lambda each: each["end_ns"])
        assert run.steps == sum(each["count"] for each in own)
        assert len(own) > 5
        assert [str(run.steps)] == prometheus.values(f"sum({series}_count_total)")
        expected = {
            "mean": [each["sum"] / each["count"] for each in own],
            "max": [each["max"] for each in own],
            "min": [each["min"] for each in own],
            "value": [each["last"] for each in own],
        }
        for aggregation, values in expected.items():
            stored = prometheus.samples(f"{series}_{aggregation}{unit}")
            assert [(each["end_ns"] // 10**6, _written(value)) for each, value in zip(own, values, strict=True)] == [
                (at, _written(float(value))) for at, value in stored
            ]
        ends = [each["end_ns"] // 10**6 for each in own]
        counts = accumulate(each["count"] for each in own)
        (began, zero), *stored = prometheus.samples(f"{series}_count_total")
        assert list(zip(ends, map(str, counts), strict=True)) == stored
        assert ("0", True) == (zero, own[0]["start_ns"] // 10**6 - 60_000 < began < ends[0])
    sums = accumulate(each["sum"] for each in own)
    (_, zero), *stored = prometheus.samples("step_time_sum_seconds")
    assert "0" == zero
    assert list(zip(ends, sums, strict=True)) == [(at, float(value)) for at, value in stored]


def check_events(loki: Loki, run: Run) -> None:
    """Loki has each event of the run once, with its time, severity and attributes, and nothing else of the run."""
    assert run.checkpoints == [each["data"]["number"] for each in run.events]
    stored = []
    for record in loki.records():
        kept = record.attributes
        assert (record.labels["service_name"], kept["scope_name"]) == ("train", "monitel")
        data = {"number": int(kept["number"]), "path": kept["path"], "share": float(kept["share"])}
        severity, step = int(kept["severity_number"]), int(kept["training_step"])
        time_ns = record.time_ns // 1000 * 1000  # the timestamp of an event has microseconds
        stored.append((record.line, {"time_ns": time_ns, "severity": severity, "step": step, "data": data}))
    assert [("checkpoint", each) for each in run.events] == stored


def _written(value: float) -> float | str:
    """A value to compare: NaN equals itself."""
    return "NaN" if value != value else float(value)  # noqa: PLR0124  NaN
