"""Points stay exact: sums, late numbers, dropped windows, many readings, and waits of other sources."""

import math
import time
from itertools import pairwise
from typing import Any

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import CUMULATIVE, DEADLINE
from tests.support.pipelines import Start, busy_encoder, delivered_by
from tests.support.producers import close_windows, fill, make_small, wait
from tests.support.receiver import Receiver
from tests.support.series import increase

import monitel
from monitel import COUNT, HISTOGRAM, SUM, VALUE, LoggedNumbers, Stat, WaitReading, wait_counter
from monitel.testing import ManualClock
from monitel.wait_counter import set_foreign_waits

MILLISECOND_NS = 1_000_000


def test_sums_leave_out_what_is_not_finite_or_falls(
    receiver: Receiver, start: Start, clock: ManualClock, temporality: int
) -> None:
    """Gauges and counts have it. Two of the windows are of one moment."""
    with delivered_by(start()):
        stat = Stat("rising", [COUNT, SUM, VALUE], 60.0, monotonic=True)
        for sample, seconds in ((0.5, 60), (-1.0, 0), (math.nan, 60), (math.inf, 60), (2.0, 60)):
            fill(stat, sample)
            clock.advance(seconds)
    is_cumulative = temporality == CUMULATIVE
    assert ([1, 3, 4, 5] if is_cumulative else [1, 2, 1, 1]) == receiver.values("rising.count")
    assert ([0.5, 0.5, 0.5, 2.5] if is_cumulative else [0.5, 2.0]) == receiver.values("rising.sum")
    assert "[0.5, nan, inf, 2.0]" == repr(receiver.values("rising.value"))


def test_number_that_arrives_late_has_a_later_time(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Such as one from a device: after the points that were sent already, or at its own time beside those that wait."""
    with delivered_by(start()) as pipeline:
        late, same, later = (LoggedNumbers({"loss": value}) for value in (1.0, 1.25, 1.5))
        clock.advance(1)
        for numbers in (LoggedNumbers({"loss": 2.0}), late, LoggedNumbers({"loss": 2.5}), same):
            monitel.log_event(numbers)
    monitel.log_event(later)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("loss")
    assert ([1.25, 2.5, 1.5], 2) == ([each.value for each in points], receiver.values("monitel.log.coalesced")[-1])
    assert [late.time_ns, clock.time_ns(), clock.time_ns() + MILLISECOND_NS] == [point.time_ns for point in points]


def test_numbers_behind_a_clock_that_was_set_back_have_all_a_point(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """The points follow the last one each millisecond; numbers of one millisecond have one."""
    with delivered_by(start()) as pipeline:
        monitel.log({"loss": 0.0})
        last_ns = clock.time_ns()
        assert pipeline.force_flush(DEADLINE)
        clock.set_wall_clock(-3600)
        for value in (1.0, 2.0, 3.0, 3.5):
            monitel.log({"loss": value})
            clock.advance(1.0 if value < 3 else 0.0)
    found = [(each.value, each.time_ns - last_ns) for each in receiver.points("loss")]
    assert [(0.0, 0), *((value, after * MILLISECOND_NS) for value, after in ((1.0, 1), (2.0, 2), (3.5, 3)))] == found


def test_value_that_cannot_be_encoded_is_counted(receiver: Receiver, start: Start) -> None:
    """An earlier handler may have changed the Event."""
    pipeline = start()
    odd: Any = LoggedNumbers({"loss": 0.5, "odd": 1.0})
    odd.data["odd"] = object()
    monitel.log_event(odd)
    assert not pipeline.force_flush(DEADLINE)
    assert ({"encoding": 1}, [0.5]) == (pipeline.account()["metrics"].dropped, receiver.values("loss"))


@pytest.mark.parametrize("limit", ["disk", "memory"])
def test_dropped_windows_stay_in_the_totals(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, limit: str
) -> None:
    """The oldest are dropped, unless they are being sent. Their samples are in the totals, from the first one on."""
    make_small(monkeypatch, **({"spool_bytes": 9_000} if limit == "disk" else {"memory_bytes": 9_000, "after_s": 60}))
    pipeline = start(distributions="histogram", black_box=False)
    assert pipeline.engine is not None
    if limit == "memory":
        monkeypatch.setattr(pipeline.engine.box, "tend_disk", lambda _after_s: None)
    begin_ns = clock.time_ns()
    stat = Stat("x", [COUNT, SUM, HISTOGRAM], 60.0)
    with busy_encoder(pipeline):
        close_windows(stat, clock, *([float(number)] for number in range(100)))
        stat.flush()
        reason = {"disk": "spool_full", "memory": "queue_full"}[limit]
        wait_until(lambda: pipeline.dropped.get(reason, 0) > 20, "dropped windows")
        monkeypatch.undo()  # else the items behind those in flight are dropped, too
    assert not pipeline.force_flush(DEADLINE)
    dropped = pipeline.dropped[reason]
    assert ({reason: dropped}, 100 - dropped) == (pipeline.dropped, pipeline.account()["metrics"].delivered)
    kept = receiver.values("x.count")
    holes = [after - before for before, after in pairwise(kept) if after != before + 1]
    assert (100 - dropped, 100, True) == (len({*kept}), kept[-1], len(holes) <= 1)
    assert sorted(kept) == kept
    assert [number * (number - 1) / 2 for number in kept] == receiver.values("x.sum")
    assert [*kept] == [point.proto.count for point in receiver.points("x.histogram")]
    assert [begin_ns] == [point.start_ns for point in receiver.start_points("x.count")]


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


def test_foreign_totals_begin_where_they_say(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or when the process began. The longest wait since the last export is derived from the totals."""
    began = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(wait_counter, "_began_ns", began)
    theirs = {"old": WaitReading(3, 7.5, 5.0, 1), "given": WaitReading(1, 0.5, 0.5, 0, began + 10**9)}
    theirs["own"] = WaitReading(100, 100.0, 100.0, 0)
    wait_counter.set_foreign_waits(theirs)
    with ManualClock() as clock:
        wait(clock, "own", 0.0)  # a key of the process takes precedence
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    wait_counter.set_foreign_waits({**theirs, "old": WaitReading(4, 8.5, 5.0, 0)})
    assert pipeline.force_flush(DEADLINE)
    wait_counter.set_foreign_waits({})
    assert ({1}, {0.0}) == tuple({*receiver.values(f"own.wait.{name}")} for name in ("count", "time"))
    for key, start_ns in (("old", began), ("given", began + 10**9)):
        (zero,) = receiver.start_points(f"{key}.wait.time")
        assert (start_ns, start_ns) == (zero.time_ns, zero.start_ns)
    assert (8.5, 4) == (increase(receiver, "old.wait.time"), increase(receiver, "old.wait.count"))
    assert (0, [5.0, 1.0]) == (receiver.values("old.wait.active")[-1], receiver.values("old.wait.max"))


def test_longest_foreign_wait() -> None:
    """A new maximum and an only wait of all readings are known; otherwise the key is omitted, as one of monitel."""
    maxima, own = monitel.WaitMaxima(), monitel.WaitCounter("test_points.own").key
    table: list[tuple[list[WaitReading], dict[str, float]]] = [
        ([WaitReading(1, 5.0, 5.0, 0), WaitReading(2, 6.0, 5.0, 0), WaitReading(4, 9.0, 5.0, 0)], {"elsewhere": 5.0}),
        ([WaitReading(4, 9.0, 5.0, 0)], {}),
        ([WaitReading(5, 10.0, 5.0, 0), WaitReading(6, 12.0, 5.0, 0)], {"elsewhere": 2.0}),
        ([WaitReading(7, 13.0, 5.0, 0), WaitReading(9, 20.0, 5.0, 0)], {}),
        ([WaitReading(11, 23.0, 5.0, 0), WaitReading(12, 24.0, 5.0, 0)], {}),
        ([WaitReading(14, 28.0, 5.0, 0), WaitReading(15, 35.0, 7.0, 0)], {"elsewhere": 7.0}),
    ]
    for readings, longest in table:
        for reading in readings:
            set_foreign_waits({"elsewhere": reading, own: reading})
        assert longest == maxima.read()
    assert ({"elsewhere": 7.0}, 0) == (monitel.WaitMaxima().read(), monitel.wait_counters()[own].max)
