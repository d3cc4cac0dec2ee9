"""A file system that hangs blocks only the disk thread: delivery continues, the exit is in time, losses are counted."""

from __future__ import annotations

import os
from itertools import pairwise
from threading import Event, current_thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import EXIT, in_time, limit, wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.support.spools import last_line, spooled

import monitel
import monitel_otlp.delivery.retry_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel_otlp import Pipeline

pytestmark = pytest.mark.timed

INTERVAL = 0.1
LATE = 1.5  # seconds: a sender waits once for the disk, at most one second


class FileSystem:
    """Calls that hang in the disk's thread until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called = Event()
        self.back = Event()
        self.others: set[str] = set()  # other threads of the pipeline that use files, which they must not
        self._patch = monkeypatch

    def hang(self, name: str) -> None:
        """Let a function of ``os`` hang from now on."""
        original: Callable[..., Any] = getattr(os, name)

        def hanging(*arguments: Any, **options: Any) -> Any:
            thread = current_thread().name
            if thread == "monitel-otlp-disk":
                self.called.set()
                assert self.back.wait(2 * DEADLINE)
            elif thread.startswith("monitel") and thread != "monitel-otlp-leftovers":
                self.others.add(thread)
            return original(*arguments, **options)

        self._patch.setattr(os, name, hanging)


@pytest.fixture(autouse=True)
def without_black_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no black box: its files are in memory, and used in other threads."""
    monkeypatch.setenv("MONITEL_BLACK_BOX", "0")


@pytest.fixture
def file_system(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSystem]:
    """A file system that works again at the end of the test."""
    file_system = FileSystem(monkeypatch)
    yield file_system
    file_system.back.set()
    assert set() == file_system.others


def limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write requests to disk when three large events wait, and drop the oldest when five wait."""
    monkeypatch.setattr(monitel_otlp.delivery.retry_queue, "_MEMORY_BYTES", 50_000)


def emit_large(name: str) -> None:
    """Emit an event of 20 kB."""
    monitel.emit(name, text="x" * 20_000)


def wait_for_disk(pipeline: Pipeline) -> None:
    """Flush until some events are on disk."""

    def has_events() -> bool:
        pipeline.force_flush(0.1)
        return pipeline.account()["logs"].on_disk > 0

    wait_until(has_events, "an event on disk")


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_online_signals_are_delivered_beside_a_disk_that_hangs(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, file_system: FileSystem, call: str
) -> None:
    """If one signal's backend is away and the disk for its requests hangs, other signals arrive in every interval."""
    limit_memory(monkeypatch)
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    file_system.hang(call)
    pipeline = start(export_interval=INTERVAL)
    tracer = pipeline.tracer_provider.get_tracer("mine")
    for number in range(30):
        emit_large(f"event {number}")
        tracer.start_span(f"span {number}").end()
        known = len(receiver.of("metrics"))
        receiver.wait_until(lambda known=known: len(receiver.of("metrics")) > known)  # type: ignore[misc]
    assert file_system.called.wait(DEADLINE)
    receiver.wait_until(lambda: 30 == len(receiver.spans()))
    for signal in ("metrics", "traces"):
        arrivals = [request.arrived for request in receiver.of(signal)]
        assert max(later - earlier for earlier, later in pairwise(arrivals)) < limit(LATE)
    with in_time(EXIT):
        assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert 30 == account.delivered + account.on_disk + account.lost
    assert account.lost
    assert {"exit", "disk"} >= set(account.dropped)


def test_backlog_is_delivered_when_the_file_system_is_back(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, file_system: FileSystem
) -> None:
    """Nothing is lost, and nothing arrives twice."""
    limit_memory(monkeypatch)
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    pipeline = start(export_interval=INTERVAL)
    for number in range(4):
        emit_large(f"event {number}")
        assert not pipeline.force_flush(0.1)
    wait_for_disk(pipeline)
    file_system.hang("pwrite")
    for number in range(4, 7):
        emit_large(f"event {number}")
        assert not pipeline.force_flush(0.1)
    assert file_system.called.wait(DEADLINE)
    file_system.back.set()
    receiver.forget_rules()
    while not pipeline.force_flush(1.0):
        assert {} == pipeline.dropped
    assert sorted(f"event {number}" for number in range(7)) == sorted(receiver.record_names())
    assert 7 == pipeline.account()["logs"].delivered


@pytest.mark.parametrize("call", ["open", "pread", "fstat"])
def test_read_that_hangs_does_not_stop_delivery_from_memory(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, file_system: FileSystem, call: str
) -> None:
    """If the backend is back and the disk hangs, new items arrive at once, and those on disk later."""
    limit_memory(monkeypatch)
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    pipeline = start(export_interval=INTERVAL)
    for number in range(4):
        emit_large(f"old {number}")
        assert not pipeline.force_flush(0.1)
    wait_for_disk(pipeline)
    file_system.hang(call)
    receiver.forget_rules()
    for number in range(4):
        monitel.emit(f"new {number}")
        pipeline.force_flush(0.1)
        receiver.wait_until(lambda number=number: f"new {number}" in receiver.record_names())  # type: ignore[misc]
    assert file_system.called.is_set()
    assert pipeline.account()["logs"].on_disk
    file_system.back.set()
    while not pipeline.force_flush(1.0):
        assert {} == pipeline.dropped
    assert 8 == len(receiver.record_names()) == pipeline.account()["logs"].delivered


def test_offline_run_on_a_disk_that_hangs_stays_within_its_memory(
    *, start: Start, monkeypatch: pytest.MonkeyPatch, file_system: FileSystem
) -> None:
    """The oldest requests are dropped with the reason ``disk`` and counted at once."""
    monkeypatch.setattr(monitel_otlp.delivery.retry_queue, "_MEMORY_BYTES", 2_000_000)
    file_system.hang("pwrite")
    pipeline = start(endpoint=None, export_interval=0.02)
    text = "x" * 10_000
    for number in range(2000):
        monitel.emit(f"event {number}", text=text)
    assert file_system.called.wait(DEADLINE)
    wait_until(lambda: pipeline.account()["logs"].dropped.get("disk", 0) >= 1000, "1000 dropped events")
    with in_time(EXIT):
        assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert 2000 == account.recorded == account.lost + account.on_disk


@pytest.mark.parametrize("call", ["open", "pwrite", "listdir", "stat", "unlink", "close"])
def test_shutdown_is_in_time_when_the_disk_begins_to_hang(*, start: Start, file_system: FileSystem, call: str) -> None:
    """Whichever call hangs, items that were not written are counted."""
    pipeline = start(endpoint="http://127.0.0.1:9")
    for number in range(100):
        monitel.emit(f"event {number}")
    assert not pipeline.force_flush(0.1)
    file_system.hang(call)
    with in_time(EXIT):
        assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert 100 == account.on_disk + account.lost
    assert {"exit"} >= set(account.dropped)


EXIT_SCRIPT = """\
from threading import Event, current_thread, main_thread
hung = Event()
def hang(*arguments, **options):
    assert current_thread() is not main_thread()
    hung.set()
    Event().wait()
count = int(sys.argv[3])
pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=float(sys.argv[2]))
setattr(os, sys.argv[1], hang)
loss = Stat("loss", [COUNT], 60.0)
for number in range(count):
    monitel.emit("event", number=number)
loss.add(1)
if float(sys.argv[2]) < 1:
    hung.wait()
print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("call", ["open", "pwrite"])
@pytest.mark.parametrize("interval", [0.05, 3600.0])
@pytest.mark.parametrize("count", [10, 50_000])
def test_exit_is_in_time_beside_a_disk_that_hangs(*, train: Run, call: str, interval: float, count: int) -> None:
    """Without an endpoint everything is dropped, and the last line reports the number."""
    ended = train(EXIT_SCRIPT, call, interval, count)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    line = last_line(ended.stderr)
    assert count + 1 == (line.dropped or 0) + (line.spooled or 0)
    assert line.dropped


@pytest.mark.parametrize("count", [10, 10_000])
def test_exit_delivers_beside_a_disk_that_hangs(receiver: Receiver, train: Run, count: int) -> None:
    """A healthy backend receives everything, because the disk is not needed."""
    ended = train(EXIT_SCRIPT, "open", 3600.0, count, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert count == len(receiver.records("event"))
    assert None is last_line(ended.stderr).dropped


def test_configure_does_not_touch_the_spool(
    *, receiver: Receiver, start: Start, file_system: FileSystem, tmp_path: Path
) -> None:
    """If the file system hangs, ``configure()`` returns at once, and so does a flush to a healthy backend."""
    for call in ("open", "pwrite", "mkdir", "listdir"):
        file_system.hang(call)
    with in_time(LATE):
        pipeline = start()
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)
    assert ["event"] == receiver.record_names()
    assert ([], []) == spooled(tmp_path / "spool")
