"""A training script, the official Collector and Prometheus: asserted by what they have stored, not by what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import DEADLINE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exporters.otlp.tests.receiver import Receiver

    from .conftest import Collector, Prometheus

    Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.integration

TRAIN = """\
import json, random, sys, threading
import monitel, monitel_otlp

pause = threading.Event()
windows = []
monitel.register_event_handler(lambda event: windows.append(event.window) if event.window else None)
pipeline = monitel_otlp.configure(
    service_name="train", endpoint=sys.argv[1] if len(sys.argv) > 1 else None, export_interval=0.3, spool_dir="spool"
)
loss = monitel.Stat("train.loss", list(monitel.Aggregation), 0.05)
seconds = monitel.Stat("step.time", list(monitel.Aggregation), 0.1, unit="s", attributes={"split": "train"})
steps = 0

def train(until):
    global steps
    while steps < until:
        steps += 1
        monitel.set_step(steps)
        with seconds.time():
            pause.wait(0.004)
        loss.add(float("nan") if steps % 90 == 0 else random.gauss(1, 2))
        if steps % 50 == 0:
            monitel.emit("checkpoint", number=steps // 50)

train(150)
if len(sys.argv) > 2:
    print("half", flush=True)
    sys.stdin.readline()
train(300)
pause.wait(0.02)  # the last window ends well after the one before it
pipeline.shutdown()
keys = ["start_ns", "end_ns", "count", "sum", "min", "max", "last"]
print(json.dumps([{"name": each.name, **{key: getattr(each, key) for key in keys}} for each in windows]))
"""


def written(value: float) -> float | str:
    """A value to compare: NaN equals itself."""
    return "NaN" if value != value else float(value)  # noqa: PLR0124  NaN


def check(prometheus: Prometheus, windows: list[dict[str, Any]]) -> None:
    """Prometheus has each window at its own end, and the counts add up."""
    for name, series, unit in [("train.loss", "train_loss", ""), ("step.time", "step_time", "_seconds")]:
        own = [each for each in windows if each["name"] == name]
        assert 300 == sum(each["count"] for each in own)
        assert len(own) > 10
        expected = {
            "mean": [each["sum"] / each["count"] for each in own],
            "max": [each["max"] for each in own],
            "min": [each["min"] for each in own],
            "value": [each["last"] for each in own],
        }
        for aggregation, values in expected.items():
            stored = prometheus.samples(f"{series}_{aggregation}{unit}")
            assert [(each["end_ns"] // 10**6, written(value)) for each, value in zip(own, values, strict=True)] == [
                (at, written(float(value))) for at, value in stored
            ]
        ends = [each["end_ns"] // 10**6 for each in own]
        counts = accumulate(each["count"] for each in own)
        assert list(zip(ends, map(str, counts), strict=True)) == prometheus.samples(f"{series}_count_total")
    sums = accumulate(each["sum"] for each in own)
    stored = prometheus.samples("step_time_sum_seconds")
    assert list(zip(ends, sums, strict=True)) == [(at, float(value)) for at, value in stored]


def test_every_window_is_stored_at_its_own_time(
    collector: Collector, prometheus: Prometheus, receiver: Receiver, python: Python, tmp_path: Path
) -> None:
    """Six windows of an export interval, NaN among them, in a Prometheus that takes nothing out of order."""
    (tmp_path / "train.py").write_text(TRAIN)
    with collector.run():
        done = python("train.py", collector.url)
    windows = json.loads(done.stdout)
    check(prometheus, windows)
    assert f"exported {len(windows)} windows, 6 events" in done.stderr
    records = receiver.records("checkpoint")
    assert [(number, 50 * number) for number in range(1, 7)] == [
        (record.attributes["number"], record.attributes["training.step"]) for record in records
    ]
    assert {("train", 9)} == {(record.resource["service.name"], record.severity) for record in records}
    times = [record.time_ns for record in records]
    assert sorted(times) == times
    assert windows[0]["start_ns"] < times[0] < times[-1] < time.time_ns()
    assert {"split": "train"} == receiver.points("step.time.mean")[0].attributes


def test_an_outage_of_the_collector_costs_nothing(
    collector: Collector, prometheus: Prometheus, receiver: Receiver, tmp_path: Path
) -> None:
    """It goes away in the middle of the run and comes back: everything is stored, in order."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", collector.url, "stop half-way"]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        with collector.run():
            eventually(lambda: receiver.values("train.loss.count") or training.poll(), "nothing has arrived")
        assert "half\n" == training.stdout.readline()
        with collector.run():
            stdout, _ = training.communicate("\n", timeout=DEADLINE)
    assert 0 == training.returncode
    check(prometheus, json.loads(stdout))
    assert list(range(1, 7)) == [record.attributes["number"] for record in receiver.records("checkpoint")]


def test_an_offline_run_is_replayed(
    collector: Collector, prometheus: Prometheus, receiver: Receiver, python: Python, tmp_path: Path
) -> None:
    """Afterwards all of it is stored at the times when it happened, and the spool is gone."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = python("train.py")
    with collector.run():
        assert "delivered" in python("-m", "monitel_otlp", "replay", "spool", "--endpoint", collector.url).stdout
    check(prometheus, json.loads(done.stdout))
    assert list(range(1, 7)) == [record.attributes["number"] for record in receiver.records("checkpoint")]
    assert [] == list(tmp_path.glob("spool/*"))


def test_the_collector_reads_what_cat_prints(
    collector: Collector, prometheus: Prometheus, receiver: Receiver, python: Python, tmp_path: Path
) -> None:
    """Each line, posted as it is, is a JSON request that the Collector takes and forwards."""
    (tmp_path / "train.py").write_text(TRAIN)
    windows = json.loads(python("train.py").stdout)
    paths = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}
    with collector.run():
        for line in python("-m", "monitel_otlp", "cat", "spool").stdout.splitlines():
            (kind,) = json.loads(line)
            request = urllib.request.Request(
                f"{collector.url}/v1/{paths[kind]}", line.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert (200, {"partialSuccess": {}}) == (answer.status, json.load(answer))
        eventually(lambda: len(receiver.records("checkpoint")) == 6, "not all events have arrived")
    check(prometheus, windows)
    assert list(range(1, 7)) == [record.attributes["number"] for record in receiver.records("checkpoint")]
