"""A pipeline with a healthy backend: everything arrives once, with its time."""

from __future__ import annotations

import gc
from threading import Thread
from typing import TYPE_CHECKING, Any

from tests.support.inbox import DEADLINE, Answer

import monitel
from monitel import COUNT, MEAN, SUM, Stat

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock


def test_all_windows_of_one_interval_arrive(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """2,000 windows between two exports arrive exactly once, in order, with their times."""
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


def test_items_arrive_without_a_flush(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """In each interval the thread closes expired windows, including those of idle Stats, and sends everything."""
    pipeline = start(export_interval=0.05)
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    monitel.emit("epoch")
    clock.advance(60)
    receiver.wait_until(lambda: receiver.values("loss.count") and receiver.records("epoch"))
    assert [1] == receiver.values("loss.count")
    assert pipeline.shutdown()


def test_flush_does_not_close_open_windows(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """``force_flush`` delivers closed windows; the end of the ``with`` block closes and delivers the others."""
    with start() as pipeline:
        stat = Stat("loss", [COUNT], 60.0)
        stat.add(1)
        assert pipeline.force_flush(60)
        assert [] == receiver.points("loss.count")
    assert [1] == receiver.values("loss.count")


def test_event_has_the_context_of_its_thread(receiver: Receiver, start: Start) -> None:
    """The record has the ids of the span in the thread that emitted the event, although another thread encodes it."""
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
    assert pipeline.force_flush(60)
    assert {**expected, "outside": ""} == {record.name: record.span_id for record in receiver.records()}
    assert expected == {span.name: span.span_id for span in receiver.spans()}
    assert {"load", "eval"} == {record.name for record in receiver.records() if len(record.trace_id) == 32}


def test_flush_delivers_items_recorded_during_another_flush(receiver: Receiver, start: Start) -> None:
    """An export that is in progress does not include later items, so the flush waits for the next one."""
    pipeline = start()
    receiver.answer("metrics", Answer(delay=0.3))
    flusher = Thread(target=pipeline.force_flush, args=[DEADLINE])
    flusher.start()
    receiver.wait_until(lambda: receiver.requests)
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] == receiver.record_names()
    flusher.join(DEADLINE)


def test_garbage_collected_stats_lose_nothing(receiver: Receiver, start: Start) -> None:
    """Stats in reference cycles log their last windows from the garbage collector, in any thread and at any line."""
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
