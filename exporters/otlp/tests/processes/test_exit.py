"""The end of a process: whatever it is, in time, and nothing is lost silently."""

from __future__ import annotations

import socket
import sys
import time
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from .conftest import PRELUDE
from .inbox import Answer
from .spools import LastLine, last_line, spooled

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Run, Start
    from .receiver import Receiver

TRAIN = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM], 60.0)
for number in range(10):
    loss.add(number)
    clock.advance(60)
loss.add(10)  # in a window that is still open
clock.advance(1)
monitel.emit("checkpoint", step=10)
"""
CLOCK = "print(time.monotonic(), flush=True)\n"


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, blackhole: socket.socket) -> str:
    """The URL of an endpoint that refuses, or never answers."""
    if request.param == "blackholed":
        return f"http://127.0.0.1:{blackhole.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return f"http://127.0.0.1:{gone.getsockname()[1]}"


def test_everything_is_delivered_at_exit(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Also the window that is still open; nothing is left on disk."""
    ended = train(TRAIN, receiver.url)
    assert list(range(1, 12)) == receiver.values("loss.count")
    assert 55 == receiver.values("loss.sum")[-1]
    assert ["checkpoint"] == [record.name for record in receiver.records()]
    assert LastLine(11, 1, None, None, None, None) == last_line(ended.stderr)
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("unreachable", ["refused", "blackholed"], indirect=True)
def test_an_unreachable_endpoint_costs_two_seconds_at_most(unreachable: str, train: Run, tmp_path: Path) -> None:
    """Then everything is in the spool, and the last line says how much, where, and how to deliver it."""
    ended = train(TRAIN + CLOCK, unreachable, timeout=20)
    assert ended.at - float(ended.stdout) <= 2.0
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    (folder,) = (tmp_path / "spool").iterdir()
    command = f"python -m monitel_otlp replay {folder}"
    assert LastLine(0, 0, None, 12, str(folder), command) == last_line(ended.stderr)


HUNG = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT], 60.0)
loss.add(0)
clock.advance(60)
monitel.emit("before")
sys.stdin.readline()  # a request hangs now
for number in range(10):
    loss.add(number)
    clock.advance(60)
monitel.emit("after")
"""


def test_what_comes_while_a_request_hangs_is_spooled_too(
    blackhole: socket.socket, tmp_path: Path
) -> None:
    """The delivery thread waits for an answer when the process ends: what it has not even seen yet is not lost."""
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + HUNG + CLOCK)
    url = f"http://127.0.0.1:{blackhole.getsockname()[1]}"
    with Popen([sys.executable, script, url], cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        connection, _ = blackhole.accept()
        connection.settimeout(20)
        assert connection.recv(1)
        stdout, stderr = process.communicate("\n", timeout=20)
        at = time.monotonic()
        connection.close()
    assert 0 == process.returncode, stderr
    assert at - float(stdout) <= 2.0
    assert (list(range(1, 12)), ["before", "after"]) == spooled(tmp_path / "spool")
    assert 13 == last_line(stderr).spooled


def test_an_exception_changes_nothing(receiver: Receiver, train: Run) -> None:
    """What led to it is delivered, and the traceback is the user's own."""
    ended = train(TRAIN + "raise RuntimeError('out of memory')\n", receiver.url, returncode=1)
    assert 11 == receiver.values("loss.count")[-1]
    assert ["checkpoint"] == [record.name for record in receiver.records()]
    assert ended.stderr.count("Traceback") == 1
    assert "RuntimeError: out of memory" in ended.stderr


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)"])
def test_the_exit_status_stays(receiver: Receiver, train: Run, end: str) -> None:
    """It is the user's."""
    train(TRAIN + end, receiver.url, returncode=3)
    assert 11 == receiver.values("loss.count")[-1]


def test_a_slow_backend_is_given_its_time(receiver: Receiver, train: Run) -> None:
    """Half a second for each answer is within the bound."""
    receiver.rule(lambda _request: Answer(delay=0.4))
    ended = train(TRAIN + CLOCK, receiver.url)
    assert ended.at - float(ended.stdout) <= 2.0
    assert 11 == receiver.values("loss.count")[-1]
    assert ["checkpoint"] == [record.name for record in receiver.records()]


def test_an_answer_without_end_costs_two_seconds_at_most(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """A backend that says 503 and asks for an hour does not get it."""
    receiver.rule(lambda _request: Answer(503, {"Retry-After": "3600"}))
    ended = train(TRAIN + CLOCK, receiver.url)
    assert ended.at - float(ended.stdout) <= 2.0
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


def test_a_shutdown_without_time_still_spools(train: Run, tmp_path: Path) -> None:
    """``shutdown(0)`` gives up the network, not the data."""
    ended = train(TRAIN + "assert not pipeline.shutdown(0)\n", "http://127.0.0.1:9")
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert 12 == last_line(ended.stderr).spooled


def test_a_full_disk_is_told_and_counted(train: Run) -> None:
    """Files may have 4 kB here: what does not fit is in the exit line."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    events = 'for number in range(2000): monitel.emit("event", number=number)\n'
    ended = train(limit + TRAIN + events + CLOCK, "http://127.0.0.1:9")
    said = last_line(ended.stderr)
    assert said.dropped
    assert 11 + 2001 == (said.spooled or 0) + said.dropped
    assert 1 == len([line for line in ended.stderr.splitlines() if "cannot be written" in line])


def test_offline_is_said_once_and_keeps_everything(train: Run, tmp_path: Path) -> None:
    """Without any endpoint the run is in ``monitel-runs/``; path and variable are in one warning."""
    script = TRAIN.replace('endpoint=sys.argv[1], spool_dir="spool", ', "")
    ended = train(script + "assert pipeline.force_flush(5)\nassert pipeline.shutdown()\n")
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "monitel-runs")
    (folder,) = (tmp_path / "monitel-runs").iterdir()
    warning, _goodbye = ended.stderr.splitlines()
    assert str(folder) in warning
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in warning
    said = last_line(ended.stderr)
    assert (12, str(folder)) == (said.spooled, said.folder)
    assert f"replay {folder} --endpoint" in str(said.command)


def test_one_signal_may_be_offline(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Metrics have an endpoint and go there; logs have none: they are spooled, and that is said once."""
    script = TRAIN.replace("endpoint=sys.argv[1], ", "")
    ended = train(script, env={"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics"})
    assert 11 == receiver.values("loss.count")[-1]
    assert ([], ["checkpoint"]) == spooled(tmp_path / "spool")
    warnings = [line for line in ended.stderr.splitlines() if not line.startswith("monitel: ")]
    assert 1 == len([line for line in warnings if "logs" in line and "OTEL_EXPORTER_OTLP_" in line]), ended.stderr


def test_a_run_that_recorded_nothing_leaves_nothing(train: Run, tmp_path: Path) -> None:
    """An unreachable endpoint and no telemetry: no folder, no advice to replay."""
    ended = train('monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool")\n')
    assert [] == list(tmp_path.rglob("*.spool"))
    assert (None, None) == (last_line(ended.stderr).dropped, last_line(ended.stderr).spooled)


def test_the_last_line_is_written_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece: the ranks of a job end at the same time, and torchrun has their stderr unbuffered."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append))
    start().shutdown()
    assert ["monitel: exported 0 windows, 0 events\n"] == [text for text in written if text]


def test_disabled_is_nothing_at_all(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """``OTEL_SDK_DISABLED=true``: no request, no folder, no thread, no line, and code that uses the pipeline works."""
    script = """\
import threading
from opentelemetry import metrics
with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
    metrics.get_meter("mine").create_counter("mine").add(1)
pipeline.logger_provider.get_logger("mine").emit(event_name="mine")
assert pipeline.force_flush(1) and pipeline.shutdown()
# The SDK's detectors of resources end their threads by themselves.
print([thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" not in thread.name])
"""
    ended = train(TRAIN + script, receiver.url, env={"OTEL_SDK_DISABLED": "true"})
    assert ("['MainThread']\n", "") == (ended.stdout, ended.stderr)
    assert ([], ["train.py"]) == (receiver.requests, [path.name for path in tmp_path.iterdir()])
