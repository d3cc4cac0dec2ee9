"""Exit with 100,000 queued items, or with callbacks that hang: in time, and without losses."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import EXIT, limit
from tests.support.hostile import refusing_url, url_of
from tests.support.pipelines import HOLD_ENCODER, RELEASE_ENCODER
from tests.support.receiver import Receiver
from tests.support.spools import folders, last_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.scripts import Run

ITEMS = 100_000

FILL = f"""\
from threading import Thread
from monitel.profiler import record_function
_, url, kind, busy, folder = sys.argv
options = {{"spans": True, "span_budget": 200_000}}
pipeline = monitel_otlp.configure(endpoint=url, spool_dir=folder, export_interval=3600.0, **options)
logger = pipeline.logger_provider.get_logger("mine")
tracer = pipeline.tracer_provider.get_tracer("mine")
stats = [Stat(f"stat{{number}}", [COUNT], 3600.0) for number in range(100)]

def event(number):
    monitel.emit("event", number=number)
def window(number):
    stats[number % 100].add(number)
    stats[number % 100].flush()
def range_(number):
    with record_function(f"range {{number}}"):
        pass
def record(number):
    logger.emit(event_name="record", attributes={{"number": number}})
def span(number):
    tracer.start_span(f"span {{number}}").end()

{HOLD_ENCODER}
produce = {{"events": event, "windows": window, "ranges": range_, "records": record, "spans": span}}[kind]
for number in range(100_000):
    produce(number)
{RELEASE_ENCODER}
if busy == "busy":
    def work():
        while True:
            sum(range(1000))
    Thread(target=work, daemon=True).start()
print(time.monotonic(), flush=True)
"""


@contextmanager
def backend(kind: str) -> Iterator[tuple[str, Receiver | None]]:
    """Yield the URL of a backend, and the backend itself if it is healthy."""
    if kind == "healthy":
        with Receiver() as receiver:
            yield receiver.url, receiver
    elif kind == "refuses":
        yield refusing_url(), None
    else:
        with socket.create_server(("127.0.0.1", 0)) as hanging:
            yield url_of(hanging), None


def numbers(receiver: Receiver, kind: str) -> Counter[int]:
    """Return the number of arrivals of each item."""
    if kind in {"events", "records"}:
        return Counter(record.attributes["number"] for record in receiver.records())
    return Counter(int(span.name.split()[1]) for span in receiver.spans())


def check_windows(receiver: Receiver) -> None:
    """Check that no sample is missing, and that no point arrived twice."""
    values: dict[str, list[float]] = {}
    for point in receiver.all_points():
        if point.metric.startswith("stat"):
            values.setdefault(point.metric, []).append(point.value)
    assert 100 == len(values)
    for found in values.values():
        assert len(found) == len(set(found))
        assert ITEMS / 100 == max(found)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("kind", "answers", "load"),
    [
        *((kind, "healthy", "idle") for kind in ("events", "windows", "ranges", "records", "spans")),
        *((kind, "refuses", "busy") for kind in ("events", "windows", "ranges", "records", "spans")),
        ("events", "healthy", "busy"),
        ("events", "hangs", "idle"),
        ("spans", "hangs", "busy"),
    ],
)
def test_exit_with_full_queues_loses_nothing(  # noqa: PLR0917  pytest passes them by name
    train: Run, run: Run, tmp_path: Path, kind: str, answers: str, load: str
) -> None:
    """Each item arrives once, during the run or by a replay of the spool."""
    for attempt in ("first", "second"):  # other tests may slow down the first one
        with backend(answers) as (url, received), Receiver() as replayed:
            ended = train(FILL, url, kind, load, attempt, timeout=120)
            took = ended.at - float(ended.stdout)
            dropped = last_line(ended.stderr).dropped or 0
            arrived = received or replayed
            if found := folders(tmp_path / attempt):
                run("-m", "monitel_otlp", "replay", *found, "--endpoint", arrived.url, timeout=120)
            if kind != "windows":
                counts = numbers(arrived, kind)
                assert {1} == set(counts.values())
                assert ITEMS == len(counts) + dropped
            elif not dropped:
                check_windows(arrived)
        if took < limit(EXIT) and not dropped:
            return
    pytest.fail(f"the exit took {took} s and dropped {dropped} items")


CALLBACKS = """\
from threading import Event
from opentelemetry.metrics import Observation
entered = Event()
def never_returns(_options):
    entered.set()
    Event().wait()
def takes_five_seconds(_options):
    entered.set()
    time.sleep(5)
    return []
def raises(_options):
    entered.set()
    raise SystemExit(3)
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=float(sys.argv[3]))
meter = pipeline.meter_provider.get_meter("mine")
for number in range(int(sys.argv[4])):
    meter.create_observable_gauge(f"faulty{number}", [globals()[sys.argv[2]]])
if float(sys.argv[3]) < 1:
    entered.wait()
loss = Stat("loss", [COUNT], 60.0)
loss.add(1)
for number in range(1000):
    monitel.emit("event")
print(time.monotonic())
"""


@pytest.mark.timed
@pytest.mark.parametrize("interval", [0.05, 3600.0])
@pytest.mark.parametrize(
    ("kind", "faulty"), [("never_returns", 1), ("takes_five_seconds", 1), ("raises", 1), ("never_returns", 6)]
)
def test_exit_is_in_time_beside_callbacks_that_hang(
    *, receiver: Receiver, train: Run, kind: str, faulty: int, interval: float
) -> None:
    """Everything is delivered, whether the callback hangs before the exit or during it."""
    ended = train(CALLBACKS, receiver.url, kind, interval, faulty)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert 1000 == len(receiver.records("event"))
    assert [1] == receiver.values("loss.count")
    line = last_line(ended.stderr)
    assert (1, 1000, None) == (line.windows, line.events, line.dropped)


REFUSED = """\
import atexit, threading
from opentelemetry.metrics import Observation
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
if sys.argv[2] == "hangs":
    def hang(_options):
        threading.Event().wait()
    pipeline.meter_provider.get_meter("mine").create_observable_gauge("faulty", [hang])
def refuse(_thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def refuse_threads():  # as CPython does from 3.12 on
    threading.Thread.start = refuse
atexit.register(refuse_threads)
loss = Stat("loss", [COUNT], 60.0)
loss.add(1)
for number in range(1000):
    monitel.emit("event", number=number)
pipeline.tracer_provider.get_tracer("mine").start_span("span 0").end()
print(time.monotonic(), flush=True)
"""


@pytest.mark.timed
@pytest.mark.parametrize("callback", ["none", "hangs"])
@pytest.mark.parametrize("answers", ["healthy", "refuses", "hangs"])
def test_exit_needs_no_new_thread(train: Run, answers: str, callback: str) -> None:
    """If CPython refuses to start threads, the first request is sent, and everything is delivered or on disk."""
    with backend(answers) as (url, received):
        ended = train(REFUSED, url, callback)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    line = last_line(ended.stderr)
    assert None is line.dropped
    if received is None:
        assert 1002 == line.spooled
    else:
        assert set(range(1000)) == set(numbers(received, "events"))
        assert [1] == received.values("loss.count")
        assert 1 == len(received.spans())
