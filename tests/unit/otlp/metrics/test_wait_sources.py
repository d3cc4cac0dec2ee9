"""Wait counters of sources, such as torch's, as metric points: totals, new starts, and sources that hang."""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import wait_until, warnings_with
from tests.support.inbox import DEADLINE, TEMPORALITY
from tests.support.producers import wait
from tests.support.series import increase

import monitel
from monitel import WaitReading, wait_counter
from monitel.testing import ManualClock
from monitel_otlp.metrics.rising_sums import RisingSums, Total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    Export = Callable[..., None]


@pytest.fixture
def theirs() -> Iterator[dict[str, WaitReading]]:
    """The readings of a source, which the test may change."""
    readings: dict[str, WaitReading] = {}

    def source() -> dict[str, WaitReading]:
        return dict(readings)

    wait_counter.add_source(source)
    yield readings
    readings.clear()
    wait_counter.remove_source(source)


def test_totals_of_a_source_are_sent(
    receiver: Receiver, start: Start, theirs: dict[str, WaitReading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source may have totals from before the pipeline; they begin when the process began, or where it says."""
    began = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(wait_counter, "_began_ns", began)
    given = began + 10**9
    theirs.update({"old": WaitReading(3, 7.5, 5.0, 1), "given": WaitReading(1, 0.5, 0.5, 0, given)})
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    theirs["old"] = WaitReading(4, 8.5, 5.0, 0)
    assert pipeline.force_flush(DEADLINE)
    for key, start_ns in (("old", began), ("given", given)):
        zero = receiver.start_points(f"{key}.wait.time")[0]
        assert (start_ns, start_ns) == (zero.time_ns, zero.start_ns)
    assert (8.5, 4) == (increase(receiver, "old.wait.time"), increase(receiver, "old.wait.count"))
    assert 0 == receiver.values("old.wait.active")[-1]
    assert [5.0, 1.0] == receiver.values("old.wait.max")  # the only wait since then took 1 s


@pytest.fixture(params=["cumulative", "delta"])
def temporality(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the temporality of the test's pipeline."""
    monkeypatch.setenv(TEMPORALITY, request.param)
    return str(request.param)


@pytest.fixture
def export(start: Start, theirs: dict[str, WaitReading], temporality: str) -> Export:
    """Return a function that exports readings of a key, which has the name of the temporality, one after the other."""

    def export(*readings: WaitReading) -> None:
        pipeline = start()
        for reading in readings:
            theirs[temporality] = reading
            assert pipeline.force_flush(DEADLINE)

    return export


def test_source_that_falls_has_a_new_start(receiver: Receiver, temporality: str, export: Export) -> None:
    """Time and count begin again together, even if one of them has risen. There is no negative difference."""
    export(WaitReading(5, 2.0, 1.0, 0), WaitReading(2, 3.0, 3.0, 0), WaitReading(3, 4.0, 3.0, 0))
    for name, total in (("time", 2.0 + 4.0), ("count", 5 + 3)):
        metric = f"{temporality}.wait.{name}"
        points = receiver.points(metric)
        if temporality == "delta":
            assert total == sum(point.value for point in points)
            assert min(point.value for point in points) > 0
            assert all(two.start_ns >= one.time_ns for one, two in pairwise(points))
            continue
        starts = sorted({point.start_ns for point in points})
        assert 2 == len(starts)
        first = [point for point in points if point.start_ns == starts[0]]
        second = [point for point in points if point.start_ns == starts[1]]
        zero = receiver.start_points(metric)[-1]
        assert first[-1].time_ns < starts[1] == zero.start_ns == zero.time_ns < second[0].time_ns
        assert total == first[-1].value + second[-1].value


def test_source_that_falls_to_zero_and_rises_loses_nothing(
    receiver: Receiver, temporality: str, export: Export
) -> None:
    """With delta temporality a total of zero has no point; the next point is the whole total."""
    export(WaitReading(5, 2.0, 1.0, 0), WaitReading(0, 0.0, 0.0, 0), WaitReading(7, 4.0, 3.0, 0))
    for name, total in (("time", 2.0 + 4.0), ("count", 5 + 7)):
        points = receiver.points(f"{temporality}.wait.{name}")
        if temporality == "delta":
            assert total == sum(point.value for point in points)
        else:
            assert total == sum(max(p.value for p in points if p.start_ns == at) for at in {p.start_ns for p in points})


def test_sums_that_fall_within_a_millisecond_start_after_their_last_point() -> None:
    """Two requests may be made at the same time, or the clock may be set back."""
    sums, now_ns = RisingSums(delta=False), 10**18
    found: list[Any] = []
    for total, at_ns in ((5, now_ns), (2, now_ns), (1, now_ns - 10**9), (3, now_ns - 10**9)):
        sums.write("x", (), [Total("x", total, now_ns - 10**9)], at_ns, lambda: found)
    values = [(point.start_time_unix_nano - now_ns, point.time_unix_nano - now_ns, point.as_int) for point in found]
    times = [time_ns for _, time_ns, _ in values]
    assert sorted(times) == times
    for (start_ns, time_ns, value), (other_start_ns, _, other) in pairwise(values):
        assert start_ns <= time_ns
        assert (start_ns == other_start_ns and value <= other) or time_ns < other_start_ns


def test_source_that_falls_between_two_pipelines_has_a_new_start(
    receiver: Receiver, start: Start, theirs: dict[str, WaitReading]
) -> None:
    """The second pipeline knows the last totals of the first one."""
    for reading in (WaitReading(5, 2.0, 1.0, 0), WaitReading(2, 1.5, 1.5, 0)):
        theirs["between"] = reading
        start().shutdown()
    for name, values in (("time", [2.0, 1.5]), ("count", [5, 2])):
        points = receiver.points(f"between.wait.{name}")
        by_start = {point.start_ns: point.value for point in points}
        assert values == list(by_start.values())
        assert max(by_start) > points[0].time_ns


def test_source_that_disappears_comes_back_with_its_totals(
    receiver: Receiver, start: Start, theirs: dict[str, WaitReading]
) -> None:
    """Without it there is no point; its totals go on afterwards."""
    pipeline = start()
    theirs["leaving"] = WaitReading(5, 2.0, 1.0, 0)
    assert pipeline.force_flush(DEADLINE)
    del theirs["leaving"]
    pipeline.force_flush(DEADLINE)
    known = len(receiver.points("leaving.wait.count"))
    assert pipeline.force_flush(DEADLINE)
    assert known == len(receiver.points("leaving.wait.count"))
    theirs["leaving"] = WaitReading(6, 2.5, 1.0, 0)
    assert pipeline.force_flush(DEADLINE)
    assert (6, 2.5) == (increase(receiver, "leaving.wait.count"), increase(receiver, "leaving.wait.time"))
    assert 1 == len({point.start_ns for point in receiver.points("leaving.wait.count")})


def test_own_key_takes_precedence_over_a_source(
    receiver: Receiver, start: Start, theirs: dict[str, WaitReading]
) -> None:
    """As in ``monitel.wait_counters()``."""
    theirs["loading"] = WaitReading(100, 100.0, 100.0, 0)
    with ManualClock() as clock:
        wait(clock, "loading", 1.0)
    assert start().force_flush(DEADLINE)
    assert ({1}, {1.0}) == tuple(set(receiver.values(f"loading.wait.{name}")) for name in ("count", "time"))


@pytest.mark.timed
def test_source_that_hangs_stops_nothing_else(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Wait counters of the process with their longest wait, counters and windows arrive. One warning is logged."""
    released, asked = threading.Event(), threading.Event()

    def source() -> dict[str, WaitReading]:
        asked.set()
        released.wait(3 * DEADLINE)
        return {"theirs": WaitReading(1, 1.0, 1.0, 0)}

    def has_arrived(number: int) -> bool:
        metrics = ("loading.wait.count", "loading.wait.max", "samples", "loss.max")
        return all(number in receiver.values(metric) for metric in metrics)

    wait_counter.add_source(source)
    try:
        with ManualClock() as clock:
            start(export_interval=0.1)
            assert asked.wait(DEADLINE)
            for number in range(1, 4):
                wait(clock, "loading", float(number))
                monitel.counter("samples").add(1)
                stat = monitel.Stat("loss", [monitel.MAX], 60.0)
                stat.add(number)
                stat.flush()
                receiver.wait_until(partial(has_arrived, number))
        assert [] == receiver.points("theirs.wait.count")
        wait_until(lambda: warnings_with(caplog, "a source of wait counters takes more than 1 s"))
    finally:
        released.set()
    receiver.wait_until(lambda: receiver.points("theirs.wait.count"))
    wait_counter.remove_source(source)
    assert 1 == len(warnings_with(caplog, "a source of wait counters"))
