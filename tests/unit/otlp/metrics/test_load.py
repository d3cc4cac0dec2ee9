"""Many series, many threads and full queues: what is sent stays exact, and what is dropped is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.inbox import DEADLINE
from tests.support.pipelines import busy_encoder, reported_drops
from tests.support.producers import close_windows

import monitel
from monitel import COUNT, HISTOGRAM, SUM, LoggedNumbers, Stat
from monitel_otlp.engine import engine

if TYPE_CHECKING:
    import pytest
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock

MILLISECOND_NS = 1_000_000


def test_number_that_arrives_late_is_sent_with_a_later_time(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """Such as one from a device: after the points that were sent already, or at its own time beside those that wait."""
    pipeline = start()
    late, same, later = (LoggedNumbers({"loss": value}) for value in (1.0, 1.25, 1.5))
    clock.advance(1)
    for numbers in (LoggedNumbers({"loss": 2.0}), late, LoggedNumbers({"loss": 2.5}), same):
        monitel.log_event(numbers)
    assert pipeline.force_flush(DEADLINE)
    monitel.log_event(later)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("loss")
    assert ([1.25, 2.5, 1.5], 2) == ([each.value for each in points], receiver.values("monitel.log.coalesced")[-1])
    assert [late.time_ns, clock.time_ns(), clock.time_ns() + MILLISECOND_NS] == [point.time_ns for point in points]


def test_value_that_cannot_be_encoded_is_counted(receiver: Receiver, start: Start) -> None:
    """An earlier handler may have changed the Event."""
    pipeline = start()
    odd: Any = LoggedNumbers({"loss": 0.5, "odd": 1.0})
    odd.data["odd"] = object()
    monitel.log_event(odd)
    pipeline.force_flush(DEADLINE)
    assert [0.5] == receiver.values("loss")
    assert {"encoding": 1} == dict(pipeline.account()["metrics"].dropped)


def test_dropped_number_is_not_replaced_by_a_later_one(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """A value of the same millisecond is a new item then."""
    monkeypatch.setattr(engine, "LIMIT", 3)
    pipeline = start()
    with busy_encoder(pipeline):
        monitel.log({"loss": 1.0})
        monitel.log({"a": 1.0, "b": 1.0, "c": 1.0})  # drops loss
        monitel.log({"loss": 2.0})  # drops a
    assert {"metrics": 2} == reported_drops(receiver, pipeline, "queue_full")
    assert ([2.0], [], [1.0]) == tuple(map(receiver.values, ("loss", "a", "b")))
    assert [] == receiver.points("monitel.log.coalesced")


def test_full_queue_drops_the_oldest_windows(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Samples of dropped windows are in the totals, which begin at the start of the first window."""
    monkeypatch.setattr(engine, "LIMIT", 3)
    pipeline = start(distributions="histogram")
    begin_ns = clock.time_ns()
    stat = Stat("x", [COUNT, SUM, HISTOGRAM], 60.0)
    with busy_encoder(pipeline):
        close_windows(stat, clock, [1.0], [2.0, 2.0], [3.0], [4.0])
        stat.flush()
    assert {"metrics": 1} == reported_drops(receiver, pipeline, "queue_full")
    assert ([3, 4, 5], [5.0, 8.0, 12.0]) == (receiver.values("x.count"), receiver.values("x.sum"))
    assert [3, 4, 5] == [point.proto.count for point in receiver.points("x.histogram")]
    assert [begin_ns] == [point.time_ns for point in receiver.start_points("x.count")]


def test_readings_of_a_round_are_spread_over_requests(receiver: Receiver, start: Start) -> None:
    """A large message would stall the training loop. The activities of a round have one time, and add up."""
    pipeline = start()
    for number in range(498):  # the activities are in two requests
        monitel.counter("x", attributes={"number": number}).add(1)
        with monitel.WaitCounter(f"key.{number}").guard():
            pass
    monitel.set_step(5)
    with monitel.activity("data"):
        pass
    found = monitel.ledger()
    assert found is not None
    assert pipeline.force_flush(DEADLINE)
    assert max(len({p.metric for p in request.points}) for request in receiver.of("metrics")) <= 4 * 500 + 20
    assert max(len(request.points) for request in receiver.of("metrics")) < 498 * 7
    assert dict.fromkeys(range(498), 1) == {p.attributes["number"]: p.value for p in receiver.points("x")}
    assert {1} == {value for number in range(498) for value in receiver.values(f"key.{number}.wait.count")}
    last_ns = max(point.time_ns for point in receiver.points("training.time"))
    last = [point.value for point in receiver.points("training.time") if point.time_ns == last_ns]
    assert 3 == len(last)
    assert found.elapsed_ns / 1e9 - 1e-3 <= sum(last) <= (monitel.ledger() or found).elapsed_ns / 1e9 + 1e-3
