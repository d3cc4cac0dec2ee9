"""Observable callbacks of the application that hang or fail do not stop the delivery of anything else."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.metrics import Observation
from tests.support.checks import EXIT, in_time, limit, wait_until, warnings_with
from tests.support.inbox import DEADLINE, points_of
from tests.support.producers import has_arrived, record_one_of_each
from tests.support.spools import folders, load

import monitel
from monitel import COUNT, Stat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

    from monitel_otlp import Pipeline

pytestmark = pytest.mark.timed

INTERVAL = 0.1
ROUND = 3.0  # seconds until recorded items arrive, including one second for a callback that hangs


class FaultyCallbacks:
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
        """Raise OSError."""
        self.calls += 1
        raise OSError("the device is gone")

    def exits(self, _options: Any) -> list[Observation]:
        """Raise SystemExit."""
        self.calls += 1
        raise SystemExit(3)

    def hangs_in_a_generator(self, _options: Any) -> Iterator[Observation]:
        """Hang before the first value."""
        self.calls += 1
        self.release.wait()
        yield Observation(1)

    def raises_in_a_generator(self, _options: Any) -> Iterator[Observation]:
        """Raise OSError after the first value."""
        self.calls += 1
        yield Observation(1)
        raise OSError("the device is gone")

    def returns_none(self, _options: Any) -> Any:
        """Return None."""
        self.calls += 1

    def returns_numbers(self, _options: Any) -> Any:
        """Return values without attributes."""
        self.calls += 1
        return [5]

    def fails_at_times(self, _options: Any) -> list[Observation]:
        """Raise OSError in every other call."""
        self.calls += 1
        if self.calls % 2:
            raise OSError("the device is busy")
        return [Observation(self.calls)]


KINDS = [name for name in vars(FaultyCallbacks) if not name.startswith("_")]
HANGING = [name for name in KINDS if name.startswith(("never", "takes", "hangs"))]


@pytest.fixture
def faulty() -> Iterator[FaultyCallbacks]:
    """Callbacks that hang no longer than the test."""
    faulty = FaultyCallbacks()
    yield faulty
    faulty.release.set()


@pytest.fixture
def hanging_log(faulty: FaultyCallbacks) -> Iterator[Event]:
    """An event that is set when a log handler of the application begins to hang."""
    called = Event()

    class Hanging(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            called.set()
            faulty.release.wait()

    handler = Hanging()
    logging.getLogger("monitel.otlp").addHandler(handler)
    yield called
    faulty.release.set()
    logging.getLogger("monitel.otlp").removeHandler(handler)


def observe(pipeline: Pipeline, name: str, *callbacks: Any) -> None:
    """Create an observable gauge with these callbacks."""
    pipeline.meter_provider.get_meter("mine").create_observable_gauge(name, list(callbacks))


def healthy(_options: Any) -> list[Observation]:
    """Observe the time, so that all values differ."""
    return [Observation(time.monotonic())]


def callback_threads() -> set[threading.Thread]:
    """Return the threads that run callbacks; those of an earlier test may still be there."""
    return {thread for thread in threading.enumerate() if thread.name == "monitel-otlp-callbacks"}


@pytest.mark.parametrize("kind", KINDS)
def test_faulty_callback_stops_nothing_else(
    *, receiver: Receiver, start: Start, faulty: FaultyCallbacks, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Healthy instruments, windows, events and spans arrive; the faulty callback is logged once."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "before", healthy)
    observe(pipeline, "faulty", getattr(faulty, kind))
    observe(pipeline, "after", healthy)
    receiver.wait_until(lambda: faulty.calls)
    for number in range(3):
        record_one_of_each(pipeline, number)
        for name in ("before", "after"):
            known = len(receiver.values(name))
            receiver.wait_until(lambda name=name, known=known: len(receiver.values(name)) > known, ROUND)  # type: ignore[misc]
        receiver.wait_until(partial(has_arrived, receiver, number), ROUND)
    receiver.wait_until(lambda: warnings_with(caplog, "'faulty'"), ROUND)
    assert 1 == len(warnings_with(caplog, "callback"))
    with in_time(EXIT):
        assert pipeline.shutdown()


@pytest.mark.parametrize("hanging", [1, 2, 6])
def test_interval_is_kept_beside_callbacks_that_hang(
    *, receiver: Receiver, start: Start, faulty: FaultyCallbacks, hanging: int
) -> None:
    """Any number of callbacks that hang delays no later export, and occupies at most three threads."""
    others = callback_threads()
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "healthy", healthy)
    for number in range(hanging):
        observe(pipeline, f"faulty{number}", faulty.never_returns)
    receiver.wait_until(lambda: faulty.calls >= min(hanging, 3))
    known = len(receiver.of("metrics")) + 12  # the last one that hangs is abandoned in one of these rounds
    receiver.wait_until(lambda: len(receiver.of("metrics")) > known + 20)
    arrivals = [request.arrived for request in receiver.of("metrics") if b"healthy" in request.body][-20:]
    assert max(later - earlier for earlier, later in pairwise(arrivals)) < limit(5 * INTERVAL)
    assert len(callback_threads() - others) <= 4
    faulty.release.set()
    receiver.wait_until(lambda: receiver.values(f"faulty{hanging - 1}"))


@pytest.mark.parametrize("kind", HANGING)
def test_application_does_not_wait_for_a_callback_that_hangs(
    *, receiver: Receiver, start: Start, faulty: FaultyCallbacks, kind: str
) -> None:
    """Calls that create instruments, and flushes of pipeline and provider, return in time."""
    pipeline = start()
    observe(pipeline, "faulty", getattr(faulty, kind))
    flush = threading.Thread(target=pipeline.force_flush)
    flush.start()
    wait_until(lambda: faulty.calls, "a call of the callback")
    for create in ("create_counter", "create_histogram", "create_observable_counter", "create_observable_gauge"):
        with in_time(0.5):
            getattr(pipeline.meter_provider.get_meter("mine"), create)(f"mine.{create}")
    flush.join(DEADLINE)
    record_one_of_each(pipeline, 0)
    with in_time(2 * ROUND):
        assert pipeline.force_flush(DEADLINE)
        assert pipeline.meter_provider.force_flush(10_000)  # type: ignore[attr-defined]  # the SDK's
    assert has_arrived(receiver, 0)


def test_late_result_is_exported_once(receiver: Receiver, start: Start) -> None:
    """The result is exported in the interval after the callback returns, and in no other."""
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


def test_shutdown_reports_a_loss_beside_a_callback_that_hangs(
    start: Start, faulty: FaultyCallbacks, tmp_path: Any
) -> None:
    """If the backend refuses and the disk cannot be written, shutdown returns False in time, and counts the items."""
    pipeline = start(endpoint="http://127.0.0.1:9", spool_dir=tmp_path / "file" / "spool", export_interval=INTERVAL)
    (tmp_path / "file").write_text("not a folder")
    observe(pipeline, "faulty", faulty.never_returns)
    record_one_of_each(pipeline, 0)
    with in_time(EXIT):
        assert not pipeline.shutdown()
    assert 3 == sum(pipeline.dropped.values())


def test_callback_may_use_the_pipeline(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A callback may create instruments, record and flush."""
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
    assert [] == warnings_with(caplog, "callback")


def test_callback_of_a_duplicate_instrument_is_not_called(
    receiver: Receiver, start: Start, faulty: FaultyCallbacks
) -> None:
    """The first instrument with a name is used, as in the SDK."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "gauge", healthy)
    observe(pipeline, "gauge", faulty.raises)
    with pytest.raises(Exception, match="not a name"):
        observe(pipeline, "not a name", faulty.raises)
    receiver.wait_until(lambda: len(receiver.values("gauge")) > 3)
    assert 0 == faulty.calls


FORK = """\
from threading import Event
from opentelemetry.metrics import Observation
entered = Event()
def hang(_options):
    entered.set()
    Event().wait()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
meter = pipeline.meter_provider.get_meter("mine")
meter.create_observable_gauge("faulty", [hang])
entered.wait()
for number in range(10):
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        meter.create_observable_gauge(f"child{number}", [lambda _options: []])
        monitel.emit("child")
        assert pipeline.force_flush(60)
        sys.exit()
    print(time.monotonic() - begin)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_does_not_wait_for_a_callback_that_hangs(receiver: Receiver, train: Run) -> None:
    """Forks return at once; children create instruments and deliver their events."""
    ended = train(FORK, receiver.url)
    assert 10 == len(receiver.records("child"))
    assert max(map(float, ended.stdout.split())) < 0.5


def test_log_handler_that_hangs_stops_no_callback(
    receiver: Receiver, start: Start, faulty: FaultyCallbacks, hanging_log: Event
) -> None:
    """The warning about a callback that hangs may hang as well; healthy callbacks are still called."""
    pipeline = start(export_interval=INTERVAL)
    observe(pipeline, "faulty", faulty.never_returns)
    assert hanging_log.wait(DEADLINE)
    observe(pipeline, "healthy", healthy)
    receiver.wait_until(lambda: len(receiver.values("healthy")) > 5)


@pytest.mark.parametrize("hanging", [1, 3, 5])
def test_shutdown_returns_beside_callbacks_and_an_event_handler_that_hang(
    *, start: Start, faulty: FaultyCallbacks, hanging: int
) -> None:
    """However many threads hang, event handlers never run in the thread that ends the pipeline."""
    pipeline = start(export_interval=INTERVAL)
    for number in range(hanging):
        observe(pipeline, f"faulty{number}", faulty.never_returns)
    wait_until(lambda: faulty.calls >= min(hanging, 3), "calls of the callbacks")
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    with monitel.register_event_handler(lambda _event: faulty.release.wait()), in_time(2 * EXIT):
        pipeline.shutdown()


def test_sigterm_beside_a_held_logging_lock_loses_nothing(terminate: Terminate, tmp_path: Path) -> None:
    """If the interrupted code holds the lock that an event handler waits for, windows and values are still kept."""
    terminate(HELD_LOCK, "", within=2 * EXIT)
    requests = [request for folder in folders(tmp_path / "spool") for request in load(folder)]
    metrics = [request.message() for request in requests if request.signal == "metrics"]
    names = {point.metric for message in metrics for point in points_of(message)}
    assert {"loss.count", "mine"} <= names


HELD_LOCK = """
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
pipeline = monitel_otlp.configure(spool_dir="spool", sigterm=True, export_interval=3600.0)
pipeline.meter_provider.get_meter("mine").create_counter("mine").add(7)
monitel.register_event_handler(lambda event: logging.getLogger("mine").info("an event"))
loss = Stat("loss", [COUNT], 60.0)
loss.add(1)
with logging.getLogger().handlers[0].lock:
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""
