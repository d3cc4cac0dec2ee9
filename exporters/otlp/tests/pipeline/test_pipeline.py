"""A pipeline with a healthy backend: everything arrives, once, at its own time."""

from __future__ import annotations

import datetime as dt
import gc
import time
from threading import Event as Signal
from threading import Thread
from typing import TYPE_CHECKING, Any

import monitel
from monitel import COUNT, MEAN, SUM, Severity, Stat

from .inbox import DEADLINE, Answer

if TYPE_CHECKING:

    import pytest

    from monitel.testing import ManualClock

    from .conftest import Start
    from .inbox import Request
    from .receiver import Receiver


def test_several_windows_of_one_interval_all_arrive(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """2,000 windows between two exports: each is there, at its own time, in order, exactly once."""
    pipeline = start()
    stat = Stat("loss", [COUNT, MEAN], 1.0)
    for number in range(2000):
        stat.add(number)
        clock.advance(1)
    assert pipeline.force_flush(DEADLINE)
    points = receiver.points("loss.mean")
    assert list(range(2000)) == [point.value for point in points]
    assert [points[0].time_ns + number * 10**9 for number in range(2000)] == [point.time_ns for point in points]
    assert list(range(1, 2001)) == receiver.values("loss.count")


def test_they_arrive_without_a_flush(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Each interval the thread closes windows whose time is over, also of a Stat that nobody adds to, and sends."""
    pipeline = start(export_interval=0.05)
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    monitel.emit("epoch")
    clock.advance(60)
    receiver.wait_until(lambda: receiver.values("loss.count") and receiver.records("epoch"))
    assert [1] == receiver.values("loss.count")
    assert pipeline.shutdown()


def test_the_interval_is_read_from_the_environment(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_METRIC_EXPORT_INTERVAL counts milliseconds."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "30")
    start(export_interval=None)
    monitel.emit("epoch")
    receiver.wait_until(lambda: receiver.records("epoch"))


def test_a_window_still_open_stays_open_at_a_flush(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """``force_flush`` delivers what is closed; leaving ``with`` closes the rest too."""
    with start() as pipeline:
        stat = Stat("loss", [COUNT], 60.0)
        stat.add(1)
        assert pipeline.force_flush(10)
        assert [] == receiver.points("loss.count")
    assert [1] == receiver.values("loss.count")


def test_an_event_is_a_log_record(receiver: Receiver, start: Start) -> None:
    """Name, time in ns, severity and data of the event, the step, and the name as body."""
    pipeline = start()
    moment = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, dt.timezone.utc)
    monitel.set_step(7)
    before = time.time_ns()
    data: dict[str, Any] = {"loss": 3.5, "rank": 2, "ok": False, "why": "lr"}
    monitel.log_event(monitel.Event("loss.spike", moment, data, severity=Severity.WARN))
    monitel.set_step(8)
    after = time.time_ns()
    assert pipeline.force_flush(10)
    (record,) = receiver.records()
    assert ("loss.spike", 13, "loss.spike", "monitel") == (record.name, record.severity, record.body, record.scope)
    assert 1_772_366_400_123_456_000 == record.time_ns
    assert {**data, "training.step": 7} == record.attributes
    assert isinstance(record.attributes["ok"], bool)
    assert before <= record.observed_ns <= after
    assert "" == record.trace_id


def test_an_event_carries_the_context_of_its_thread(receiver: Receiver, start: Start) -> None:
    """Each thread's own span, though another thread makes the record."""
    pipeline = start()
    tracer = pipeline.tracer_provider.get_tracer("test")
    expected = {}

    def work(name: str) -> None:
        with tracer.start_as_current_span(name) as span:
            expected[name] = format(span.get_span_context().span_id, "016x")
            monitel.emit(name)

    threads = [Thread(target=work, args=[name]) for name in ("load", "eval")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    monitel.emit("outside")
    assert pipeline.force_flush(10)
    assert {**expected, "outside": ""} == {record.name: record.span_id for record in receiver.records()}
    assert expected == {span.name: span.span_id for span in receiver.spans()}
    assert {"load", "eval"} == {record.name for record in receiver.records() if len(record.trace_id) == 32}


def test_the_users_own_instruments_travel_along(receiver: Receiver, start: Start) -> None:
    """In the very request that holds the windows, with the same resource."""
    pipeline = start(service_name="trainer", resource_attributes={"run": 5, "team": "a"})
    pipeline.meter_provider.get_meter("mine").create_counter("batches").add(3)
    pipeline.logger_provider.get_logger("mine").emit(event_name="own", body="text")
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
        pass
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(10)
    own, (window,) = receiver.points("batches")[0], receiver.points("loss.count")
    assert (3, "mine") == (own.value, own.scope)
    assert own.resource == window.resource
    assert {"service.name": "trainer", "run": 5, "team": "a"}.items() <= own.resource.items()
    assert [("own", "text")] == [(record.name, record.body) for record in receiver.records()]
    assert ["step"] == [span.name for span in receiver.spans()]
    request = next(each for each in receiver.of("metrics") if b"loss.count" in each.body)
    assert b"batches" in request.body


def test_no_request_holds_windows_alone(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Prometheus orders by resource: each request has a point of the pipeline's own, stamped when it was made."""
    pipeline = start()
    stat = Stat("loss", [COUNT], 1.0)
    for _ in range(1200):
        stat.add(1)
        clock.advance(1)
    before = time.time_ns()
    assert pipeline.force_flush(DEADLINE)
    stamps = [point.time_ns for point in receiver.points("monitel.queue.size")]
    assert len(receiver.of("metrics")) == len(stamps)
    assert sorted(stamps) == stamps
    assert before <= stamps[0]


def test_the_pipeline_reports_itself(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """What was exported, by signal, and what waits, in the shape of ``otel.sdk.*``."""
    pipeline = start()
    stat = Stat("loss", [SUM], 60.0)
    for _ in range(3):
        stat.add(1)
        clock.advance(60)
    monitel.emit("epoch")
    assert pipeline.force_flush(10)
    assert pipeline.force_flush(10)
    exported = {
        point.attributes["signal"]: point.value for point in receiver.points("monitel.exporter.item.exported")
    }
    assert {"metrics": 3, "logs": 1} == {signal: exported[signal] for signal in ("metrics", "logs")}
    shapes = {
        point.metric: (point.kind, point.monotonic, point.unit)
        for point in receiver.all_points()
        if point.scope != "monitel"
    }
    assert ("sum", True, "{item}") == shapes["monitel.exporter.item.exported"]
    assert ("sum", False, "{item}") == shapes["monitel.queue.size"]
    assert ("sum", False, "By") == shapes["monitel.spool.size"]
    assert ("histogram", None, "s") == shapes["monitel.export.duration"]
    assert [] == receiver.points("monitel.exporter.item.dropped")


def test_callers_do_not_wait_for_the_backend(receiver: Receiver, start: Start) -> None:
    """While a request hangs, adding, emitting and closing windows go on."""
    asked, answered = Signal(), Signal()

    def hold(_request: Request) -> None:
        asked.set()
        answered.wait(DEADLINE)

    receiver.rule(hold)
    pipeline = start()
    flusher = Thread(target=pipeline.force_flush, args=[DEADLINE])
    flusher.start()
    assert asked.wait(DEADLINE)
    begin = time.monotonic()
    for _ in range(100):
        stat = Stat("loss", [COUNT], 60.0)
        stat.add(1)
        stat.flush()
        monitel.emit("epoch")
    assert time.monotonic() - begin < 5  # a request is given up after 10
    answered.set()
    receiver.forget_rules()
    flusher.join(DEADLINE)
    assert pipeline.force_flush(DEADLINE)
    assert (100, 100) == (receiver.values("loss.count")[-1], len(receiver.records("epoch")))


def test_a_flush_waits_for_what_came_while_another_was_under_way(receiver: Receiver, start: Start) -> None:
    """The round in which a request hangs has begun too early to know of it."""
    pipeline = start()
    receiver.answer("metrics", Answer(delay=0.3))
    flusher = Thread(target=pipeline.force_flush, args=[DEADLINE])
    flusher.start()
    receiver.wait_until(lambda: receiver.requests)
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] == [record.name for record in receiver.records()]
    flusher.join(DEADLINE)


def test_stats_that_are_collected_anywhere_lose_nothing(receiver: Receiver, start: Start) -> None:
    """Cycles hold the Stats, so the garbage collector logs their windows, in whatever thread and line it strikes."""
    pipeline = start(export_interval=0.01)

    def work() -> None:
        for _ in range(300):
            cycle: list[Any] = [Stat("loss", [COUNT, SUM], 60.0)]
            cycle[0].add(1)
            cycle.append(cycle)
            monitel.emit("event")

    threads = [Thread(target=work, daemon=True) for _ in range(3)]
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "deadlock"
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert pipeline.force_flush(DEADLINE)
    assert (900, 900.0) == (receiver.values("loss.count")[-1], receiver.values("loss.sum")[-1])
    assert 900 == len(receiver.records("event"))
