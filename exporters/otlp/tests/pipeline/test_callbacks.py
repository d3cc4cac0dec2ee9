"""Observable callbacks and event handlers of the application that hang or fail: everything else is delivered."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.metrics import Observation

import monitel
from monitel import COUNT, Stat

from .inbox import DEADLINE
from .test_faults import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp import Pipeline

    from .conftest import Run, Start
    from .receiver import Receiver

INTERVAL = 0.1
ROUND = 3.0  # seconds in which what is recorded arrives, a callback that takes its second included
EXIT = 2.7  # seconds, of a machine that other tests share


class Sick:
    """Callbacks that hang until the test ends, or fail."""

    def __init__(self) -> None:
        self.release = Event()
        self.calls = 0

    def never_returns(self, _options: Any) -> list[Observation]:
        """Hang."""
        self.calls += 1
        self.release.wait()
        return [Observation(1)]

    def takes_five_seconds(self, _options: Any) -> list[Observation]:
        """Take longer than a round waits."""
        self.calls += 1
        self.release.wait(5)
        return [Observation(1)]

    def raises(self, _options: Any) -> list[Observation]:
        """Fail."""
        self.calls += 1
        raise OSError("the device is gone")

    def exits(self, _options: Any) -> list[Observation]:
        """Raise what ends a program."""
        self.calls += 1
        raise SystemExit(3)

    def hangs_in_a_generator(self, _options: Any) -> Iterator[Observation]:
        """Hang when the first value is asked for."""
        self.calls += 1
        self.release.wait()
        yield Observation(1)

    def raises_in_a_generator(self, _options: Any) -> Iterator[Observation]:
        """Fail after the first value."""
        self.calls += 1
        yield Observation(1)
        raise OSError("the device is gone")

    def returns_none(self, _options: Any) -> Any:
        """Forget to return."""
        self.calls += 1

    def returns_numbers(self, _options: Any) -> Any:
        """Return values without attributes."""
        self.calls += 1
        return [5]

    def fails_at_times(self, _options: Any) -> list[Observation]:
        """Fail every other time."""
        self.calls += 1
        if self.calls % 2:
            raise OSError("the device is busy")
        return [Observation(self.calls)]


KINDS = [name for name in vars(Sick) if not name.startswith("_")]
HANGING = [name for name in KINDS if name.startswith(("never", "takes", "hangs"))]


@pytest.fixture
def sick() -> Iterator[Sick]:
    """Return callbacks that hang no longer than the test."""
    sick = Sick()
    yield sick
    sick.release.set()


def observe(pipeline: Pipeline, name: str, *callbacks: Any) -> None:
    """Create a gauge."""
    pipeline.meter_provider.get_meter("mine").create_observable_gauge(name, list(callbacks))


def healthy(_options: Any) -> list[Observation]:
    """Return the time, so that each value is recognised."""
    return [Observation(time.monotonic())]


def record_one_of_each(pipeline: Pipeline, number: int) -> Callable[[Receiver], bool]:
    """Record a window, an event and a span, and return a function that is true when they have arrived."""
    stat = Stat(f"stat{number}", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    monitel.emit(f"event {number}")
    pipeline.tracer_provider.get_tracer("mine").start_span(f"span {number}").end()

    def arrived(receiver: Receiver) -> bool:
        return bool(
            receiver.values(f"stat{number}.count")
            and receiver.records(f"event {number}")
            and any(span.name == f"span {number}" for span in receiver.spans())
        )

    return arrived


def collector_threads() -> int:
    """Return the number of threads that run callbacks."""
    return sum(thread.name == "monitel-otlp-collector" for thread in threading.enumerate())


@pytest.mark.parametrize("kind", KINDS)
def test_sick_callback_keeps_nothing_else_back(
    *, receiver: Receiver, start: Start, sick: Sick, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Healthy instruments, windows, events and spans arrive; the callback is logged once."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "before", healthy)
    observe(pipeline, "sick", getattr(sick, kind))
    observe(pipeline, "after", healthy)
    receiver.wait_until(lambda: sick.calls)
    for number in range(3):
        arrived = record_one_of_each(pipeline, number)
        for name in ("before", "after"):
            known = len(receiver.values(name))
            receiver.wait_until(lambda name=name, known=known: len(receiver.values(name)) > known, ROUND)  # type: ignore[misc]
        receiver.wait_until(lambda arrived=arrived: arrived(receiver), ROUND)  # type: ignore[misc]
    receiver.wait_until(lambda: told(caplog, "'sick'"), ROUND)
    assert 1 == len(told(caplog, "callback"))
    begin = time.monotonic()
    assert pipeline.shutdown()
    assert time.monotonic() - begin < EXIT


@pytest.mark.parametrize("hanging", [1, 2, 6])
def test_rounds_keep_their_interval_beside_callbacks_that_hang(
    *, receiver: Receiver, start: Start, sick: Sick, hanging: int
) -> None:
    """Once abandoned, callbacks that hang cost no time, however many there are, and three threads at most."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "healthy", healthy)
    for number in range(hanging):
        observe(pipeline, f"sick{number}", sick.never_returns)
    receiver.wait_until(lambda: sick.calls >= min(hanging, 3))
    known = len(receiver.of("metrics")) + 12  # the last one that hangs is abandoned in one of these rounds
    receiver.wait_until(lambda: len(receiver.of("metrics")) > known + 20)
    arrivals = [request.arrived for request in receiver.of("metrics") if b"healthy" in request.body][-20:]
    assert max(later - earlier for earlier, later in pairwise(arrivals)) < 5 * INTERVAL
    assert collector_threads() <= 4
    sick.release.set()
    receiver.wait_until(lambda: receiver.values(f"sick{hanging - 1}"))


@pytest.mark.parametrize("kind", HANGING)
def test_nothing_of_the_application_waits_for_a_callback_that_hangs(
    *, receiver: Receiver, start: Start, sick: Sick, kind: str
) -> None:
    """Creating instruments and flushes of pipeline and provider return."""
    pipeline = start()
    observe(pipeline, "sick", getattr(sick, kind))
    flush = threading.Thread(target=pipeline.force_flush)
    flush.start()
    while not sick.calls:
        assert flush.is_alive()
    for create in ("create_counter", "create_histogram", "create_observable_counter", "create_observable_gauge"):
        begin = time.monotonic()
        getattr(pipeline.meter_provider.get_meter("mine"), create)(f"mine.{create}")
        assert time.monotonic() - begin < 0.5
    flush.join(DEADLINE)
    arrived = record_one_of_each(pipeline, 0)
    begin = time.monotonic()
    assert pipeline.force_flush(DEADLINE)
    assert pipeline.meter_provider.force_flush(10_000)  # type: ignore[attr-defined]  # the SDK's
    assert time.monotonic() - begin < 2 * ROUND
    assert arrived(receiver)


def test_late_result_is_exported_once(receiver: Receiver, start: Start) -> None:
    """It arrives in the round after the callback returns; rounds before and after export nothing of it."""
    releases = [Event(), Event()]
    calls = iter((0, 1))

    def slow(_options: Any) -> list[Observation]:
        call = next(calls)
        releases[call].wait(DEADLINE)
        return [Observation(call)]

    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "slow", slow)
    receiver.wait_until(lambda: len(receiver.of("metrics")) > 5)
    assert [] == receiver.values("slow")
    releases[0].set()
    receiver.wait_until(lambda: receiver.values("slow"))
    known = len(receiver.of("metrics"))
    receiver.wait_until(lambda: len(receiver.of("metrics")) > known + 5)
    assert [0] == receiver.values("slow")
    releases[1].set()


def test_shutdown_reports_a_loss_beside_a_callback_that_hangs(start: Start, sick: Sick, tmp_path: Any) -> None:
    """With a backend that refuses and a disk that takes nothing it returns False, in time, and counts the items."""
    pipeline = start(endpoint="http://127.0.0.1:9", spool_dir=tmp_path / "file" / "spool", export_interval=INTERVAL)
    (tmp_path / "file").write_text("not a folder")
    observe(pipeline, "sick", sick.never_returns)
    record_one_of_each(pipeline, 0)
    begin = time.monotonic()
    assert not pipeline.shutdown()
    assert time.monotonic() - begin < EXIT
    assert 3 == sum(pipeline.dropped.values())


def test_callback_may_use_the_pipeline(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Creating instruments, recording and flushing inside of a callback end."""
    pipeline = start(export_interval=INTERVAL)
    flushed = []

    def uses(_options: Any) -> list[Observation]:
        monitel.emit("from a callback")
        pipeline.meter_provider.get_meter("mine").create_counter("made").add(1)
        flushed.append(pipeline.force_flush(0.2))
        return [Observation(len(flushed))]

    observe(pipeline, "uses", uses)
    receiver.wait_until(lambda: len(receiver.values("uses")) > 2 and receiver.records("from a callback"))
    receiver.wait_until(lambda: receiver.values("made"))
    assert [] == told(caplog, "callback")


def test_callback_of_an_instrument_that_exists_is_not_called(receiver: Receiver, start: Start, sick: Sick) -> None:
    """As with the SDK alone: the first instrument of a name counts."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "gauge", healthy)
    observe(pipeline, "gauge", sick.raises)
    with pytest.raises(Exception, match="not a name"):
        observe(pipeline, "not a name", sick.raises)
    receiver.wait_until(lambda: len(receiver.values("gauge")) > 3)
    assert 0 == sick.calls


FORK = """\
from threading import Event
from opentelemetry.metrics import Observation
entered = Event()
def hang(_options):
    entered.set()
    Event().wait()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
meter = pipeline.meter_provider.get_meter("mine")
meter.create_observable_gauge("sick", [hang])
entered.wait()
for number in range(10):
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        meter.create_observable_gauge(f"child{number}", [lambda _options: []])
        monitel.emit("child")
        assert pipeline.force_flush(10)
        sys.exit()
    print(time.monotonic() - begin)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_does_not_wait_for_a_callback_that_hangs(receiver: Receiver, train: Run) -> None:
    """Children fork at once, create instruments, and deliver what they record."""
    ended = train(FORK, receiver.url)
    assert 10 == len(receiver.records("child"))
    assert max(map(float, ended.stdout.split())) < 0.5
