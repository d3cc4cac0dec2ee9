"""Windows of Stats: each arrives at its time, with the numbers of its samples, and no sample is lost."""

import asyncio
import datetime as dt
import gc
import math
import operator
import random
import statistics
import time
from collections.abc import Iterable
from functools import reduce
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from tests.support.producers import close_windows, fill
from tests.support.twins import MakeStat

from monitel import Histogram

EPOCH_NS = 1_767_225_600_000_000_000  # start of ManualClock; monotonic time 0 is a boundary


def times(events: Iterable[Any]) -> list[tuple[float, float]]:
    """Return start and end of each window, in seconds since the clock started."""
    return [((event.window.start_ns - EPOCH_NS) / 1e9, (event.window.end_ns - EPOCH_NS) / 1e9) for event in events]


def counts(events: Iterable[Any]) -> list[int]:
    return [event.window.count for event in events]


def test_windows_end_at_multiples_of_their_size(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A sample at a boundary is in the next window; the add() after a window logs it; empty windows log nothing."""
    clock.advance(70)
    stat = make_stat()
    for seconds, windows in ((5, 0), (44.999, 0), (0.001, 1), (61, 2)):  # 75, 119.999, 120, 181
        assert windows or not any(stat.get().values())
        clock.advance(seconds)
        stat.add(seconds)
        assert windows == len(events)
    clock.advance(900)
    stat.add(2)
    assert ([(70, 120), (120, 180), (180, 240)], [2, 1, 1], 1) == (times(events), counts(events), stat.count)
    local = dt.datetime.fromtimestamp(clock.time_ns() / 1e9)  # noqa: DTZ006  naive, as torch's
    assert ("torch.monitor.Stat", local) == (events[-1].name, events[-1].timestamp), "when it was logged"


def test_window_closes_on_time_without_samples(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """close_expired_windows() closes a window from its end on, at its end, and no others."""
    short, idle, long = make_stat("short", window_size=20.0), make_stat("idle"), make_stat("long")
    short.add(1)
    long.add(1)
    clock.advance(19.999)
    assert 0 == monitel.close_expired_windows()
    clock.advance(0.001)
    assert (1, 0, 1) == (monitel.close_expired_windows(), short.count, long.count)
    clock.advance(15)
    short.add(2)  # boundaries do not depend on the first sample
    clock.advance(7)
    assert (1, 0) == (monitel.close_expired_windows(), idle.count)
    assert [("short", (0, 20)), ("short", (20, 40))] == [
        (event.window.name, at) for event, at in zip(events, times(events), strict=True)
    ]


def test_expiry_closes_no_window_that_has_just_begun(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """A handler adds to a Stat whose expired window comes next: its window is closed, and the new one stays open."""
    stats = [make_stat("first"), make_stat("second")]
    for stat in stats:
        stat.add(1)
    clock.advance(60)
    with monitel.register_event_handler(lambda event: event.window.name == "first" and stats[1].add(2)):
        monitel.close_expired_windows()
    assert ([0, 1], [1.0, 1.0]) == ([stat.count for stat in stats], [event.window.sum for event in events])


def test_expiry_pauses_between_slices_of_work(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """pause() is called in between, at least once for 2,000 Stats, and all windows are logged, oldest Stat first."""
    stats = [make_stat(f"x{number}", [monitel.SUM]) for number in range(2000)]
    for stat in reversed(stats):
        stat.add(1)
    clock.advance(60)
    pauses: list[int] = []
    assert 2000 == monitel.close_expired_windows(lambda: pauses.append(len(events)))
    assert [each.name for each in stats] == [event.window.name for event in events]
    assert any(0 < logged < 2000 for logged in pauses)


def test_max_samples_closes_the_window(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """The last sample closes the window at once; further samples of the interval are discarded and counted."""
    stat = make_stat("x", None, 60.0, 2)
    clock.advance(10)
    for sample in (1, 2, 3, 4):
        stat.add(sample)
    assert (0, 2, [(0, 10)]) == (stat.count, stat.discarded, times(events))
    clock.advance(50)
    for sample in (5, 6, 7):
        stat.add(sample)
    assert [(3.0, 0), (11.0, 2)] == [(event.window.sum, event.window.discarded) for event in events]
    assert 3 == stat.discarded


def test_flush_closes_the_window_and_continues_the_interval(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A flushed window ends now, or at its boundary if that is over; max_samples applies to the interval."""
    stat = make_stat("x", None, 60.0, 3)
    stat.add(1)
    clock.advance(10)
    stat.flush()
    stat.flush()  # of nothing
    clock.advance(10)
    for sample in (2, 3, 4):  # three samples with the flushed one
        stat.add(sample)
    clock.advance(45)
    stat.add(5)
    clock.advance(100)
    stat.flush()
    assert [(0, 10), (10, 20), (60, 120)] == times(events)
    assert ([1, 2, 1], 1) == (counts(events), stat.discarded)


def test_released_stat_logs_its_open_window(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Immediately, or when its reference cycle is collected; nothing if it has no samples."""
    stat = make_stat("scope")
    stat.add(1)
    clock.advance(10)
    del stat
    assert [(0, 10)] == times(events)
    stat = make_stat("full", None, 60.0, 1)
    stat.add(1)
    stat.add(2)
    del stat
    cycle = [make_stat("cycle")]
    cycle[0].add(1)
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ["scope", "full", "cycle"] == [event.window.name for event in events]


def test_registered_stat_is_kept(monitel: ModuleType, events: list[Any]) -> None:
    """monitel.stat() returns the Stat of a name and attributes, with torch's aggregations and windows of 60 s."""
    monitel.stat("x").add(1)
    gc.collect()
    stat = monitel.stat("x")
    assert ([], 1, 60.0) == (events, stat.count, stat.window_size.total_seconds())
    assert ["VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"] == [each.name for each in stat.definition.aggregations]
    others = [monitel.stat("x", attributes={"a": value}) for value in (1, 1.0, True, "1")]
    two = monitel.stat("x", attributes={"a": 1, "b": 2})
    assert 6 == len({stat, *others, two})
    assert two is monitel.stat("x", attributes={"b": 2, "a": 1})
    stat = monitel.stat("y", unit="s", max_samples=5)
    other: dict[str, Any] = {"window_size": 1.0, "max_samples": 2, "unit": "ms", "aggregations": [], "monotonic": True}
    for key, value in other.items():
        with pytest.raises(ValueError, match=rf"Stat 'y' was created with {key}=.*, not "):
            monitel.stat("y", **{key: value})
    with pytest.raises(TypeError, match="must be"):
        monitel.stat("z", window_size=60)
    assert stat is monitel.stat("y", unit="s", max_samples=5)


@pytest.mark.parametrize("kind", ["stat", "counter", "WaitCounter"])
def test_first_use_of_a_name_does_not_become_slower(monitel: ModuleType, kind: str) -> None:
    """The 20,000th name of a program takes as long as its first ones."""
    times = []
    for part in range(40):
        begin = time.thread_time()
        for number in range(500):
            getattr(monitel, kind)(f"{part}.{number}")
        times.append(time.thread_time() - begin)
    assert min(times[-10:]) < 4 * min(times[:10])


def test_window_carries_the_definition_of_its_stat(monitel: ModuleType, make_stat: MakeStat, events: list[Any]) -> None:
    """Name, unit, attributes, description and monotonic, as given at the creation; wrong attributes raise."""
    given = {"split": "val", "shard": 3}
    stat = monitel.Stat("x", [], 60.0, unit="s", description="text", attributes=given, monotonic=True)
    given["split"] = "changed"
    fill(stat, 1)
    window = events[0].window
    assert ("x", "s", {"split": "val", "shard": 3}) == (window.name, window.unit, dict(window.attributes))
    assert ("text", True) == (window.definition.description, window.definition.monotonic)
    with pytest.raises(TypeError, match="item assignment"):
        window.attributes["split"] = "changed"
    for wrong in ({"": 1}, {1: 1}, {"a": None}, {"a": 2**63}, {"a": "\ud800"}, [("a", 1)]):
        with pytest.raises((TypeError, ValueError), match="attribute"):
            make_stat(attributes=wrong)


@pytest.mark.parametrize("spread", [0.001, 1.0, 4.0])
def test_aggregations_are_those_of_the_samples(make_stat: MakeStat, events: list[Any], spread: float) -> None:
    """A window of 1,000 samples has exact aggregates; percentiles and standard deviation as they are documented."""
    rng = random.Random(5)
    samples = [rng.lognormvariate(0, spread) for _ in range(1000)]
    stat = make_stat("x")
    fill(stat, *samples)
    (event,) = events
    window, ordered = event.window, sorted(samples)
    total = reduce(operator.add, samples)  # sum() is more precise from CPython 3.12 on
    plain = {"value": samples[-1], "mean": total / 1000, "count": 1000.0, "sum": total}
    plain |= {"max": ordered[-1], "min": ordered[0]}
    percentiles = {f"p{percent}": ordered[percent * 10 - 1] for percent in (50, 90, 95, 99)}
    found = {key.removeprefix("x."): value for key, value in event.data.items()}
    assert [*plain, *percentiles, "stddev"] == list(found)
    assert plain == {name: found[name] for name in plain}
    assert statistics.pstdev(samples) == pytest.approx(found["stddev"], rel=1e-9)
    error = window.histogram.relative_error
    assert error < {0.001: 1e-4, 1.0: 0.05, 4.0: 0.2}[spread]
    for name, sample in percentiles.items():
        assert sample == pytest.approx(found[name], rel=error * (1 + 1e-9))
    assert found == window.values()
    aggregates = (window.count, window.sum, window.min, window.max, window.last, window.mean)
    assert (1000, plain["sum"], plain["min"], plain["max"], plain["value"], plain["mean"]) == aggregates
    assert Histogram.of(samples) == Histogram(**vars_of(window.histogram))
    assert (ordered[0], ordered[-1]) == (window.quantile(0), window.quantile(1)) == (stat.quantile(0), stat.quantile(1))


def vars_of(histogram: Any) -> dict[str, Any]:
    return {name: getattr(histogram, name) for name in Histogram.__match_args__}


def test_distribution_is_collected_only_if_requested(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any]
) -> None:
    """Without HISTOGRAM or STDDEV the window has none, and the error names the aggregation to add."""
    stat = make_stat("x", [monitel.MEAN])
    fill(stat, 1)
    window = events[0].window
    assert (None, None, {"mean": 1.0}) == (window.histogram, window.stddev, window.values())
    for ask in (stat.quantile, window.quantile):
        with pytest.raises(ValueError, match=r"'x' does not collect HISTOGRAM: add monitel\.HISTOGRAM to"):
            ask(0.5)
    with pytest.raises(ValueError, match=r"'x' does not collect STDDEV: add monitel\.STDDEV"):
        window.value(monitel.STDDEV)


def test_each_window_has_its_own_distribution(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """A window starts empty, with fine buckets; samples that are not finite are in none; a deviation is exact."""
    stat = make_stat("x", [monitel.HISTOGRAM, monitel.STDDEV])
    assert 0.0 == stat.quantile(0.5)  # of the last closed window
    every = ([1e-9, -4.0, 1e9], [2.0], [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16], [1.0, math.nan, math.inf], [0.0, 3.0])
    close_windows(stat, clock, *every)
    windows = [event.window for event in events]
    histograms = [window.histogram for window in windows]
    assert [Histogram.of(samples) for samples in every] == [Histogram(**vars_of(each)) for each in histograms]
    assert [0.0, pytest.approx(math.sqrt(22.5), rel=1e-12), 1.5] == [windows[each].stddev for each in (1, 2, 4)]
    assert histograms[0].scale + 1 < histograms[1].scale == 20
    odd = windows[3]
    assert (3, 1, 2, 1.0) == (odd.count, odd.histogram.count, odd.histogram.nonfinite, odd.quantile(1))
    assert math.isnan(odd.stddev)
    assert (0.0, 3.0) == (stat.quantile(0.5), stat.quantile(1))
    assert 3.0 == pytest.approx(stat.quantile(0.6), rel=histograms[-1].relative_error)
    with pytest.raises(ValueError, match="q must be between 0 and 1"):
        stat.quantile(50)


def test_window_has_the_steps_of_its_first_and_last_sample(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """Not those of the moment at which it is closed; None if no step was set."""
    stat = make_stat()
    stat.add(1)
    monitel.set_step(3)
    stat.flush()
    for step in (3, 5, 4):  # after a checkpoint, steps go back
        monitel.set_step(step)
        stat.add(1)
    monitel.set_step(9)
    clock.advance(60)
    monitel.close_expired_windows()
    monitel.set_step(2**63 - 1)
    stat.add(1)
    clock.advance(60)
    monitel.set_step(0)
    stat.add(1)
    expected = [(None, None), (3, 4), (2**63 - 1, 2**63 - 1)]
    assert expected == [(event.window.first_step, event.window.last_step) for event in events]
    assert expected[1:] == [(event.window.first_step, event.step) for event in events[1:]]


def test_times_of_a_stat_only_rise(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A wall clock that is set forward moves the open window, one that is set back makes windows short."""
    clock.advance(60)
    stat = make_stat()
    for seconds in (-1000, -1000, -1000, 3000):
        clock.set_wall_clock(seconds)
        stat.add(1)
        clock.advance(10)
        stat.flush()
    stat.add(1)
    clock.set_wall_clock(5000)
    clock.advance(70)
    stat.add(2)
    windows = [event.window for event in events]
    short = [(60, 60), (60, 60), (60, 60), (60, 100)]
    assert [*short, (5060, 5120)] == [(round(start), round(end)) for start, end in times(events)]
    assert all(window.start_ns < window.end_ns for window in windows)
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(windows))


def test_merged_window_has_the_samples_of_both(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Window.merge() gives the window of all samples, with a distribution only if both have one."""
    stat = make_stat()
    for samples in ([1.0, 4.0], [2.0, -3.0, 2.5], [1.0, 4.0, 2.0, -3.0, 2.5]):
        for sample in samples:
            stat.add(sample)
        clock.advance(1)
        stat.flush()
    first, second, expected = (event.window for event in events)
    merged = first.merge(second)
    for name in ("count", "sum", "min", "max", "last", "mean", "discarded", "first_step", "last_step"):
        assert getattr(expected, name) == getattr(merged, name)
    assert (first.start_ns, second.end_ns) == (merged.start_ns, merged.end_ns)
    assert vars_of(expected.histogram) == vars_of(merged.histogram)
    assert expected.stddev == pytest.approx(merged.stddev, rel=1e-12)
    assert 4.0 == first.merge(second, other_last=False).last
    plain = make_stat("x", [])  # without aggregations it counts, and logs an event without data, as in torch
    fill(plain, 1.0)
    assert (1, {}, {}) == (events[-1].window.count, events[-1].data, plain.get())
    without = events[-1].window.merge(first)
    assert (None, None, 3) == (without.histogram, without.stddev, without.count)


def test_timer_adds_the_seconds_of_a_block_or_a_call(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Even if blocks nest or raise; a function keeps its name, and a coroutine is timed until it returns."""
    stat = make_stat()

    @stat.time()  # type: ignore[untyped-decorator]
    def recursive(depth: int) -> int:
        clock.advance(2)
        return depth and recursive(depth - 1)

    @stat.time()  # type: ignore[untyped-decorator]
    async def load(seconds: float, gate: asyncio.Event) -> float:
        await gate.wait()
        clock.advance(seconds)
        return seconds

    async def main() -> list[float]:
        gate = asyncio.Event()
        loads = [asyncio.create_task(load(seconds, gate)) for seconds in (1, 2)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*loads))

    def fail() -> None:
        with stat.time():
            clock.advance(1.5)
            with stat.time():
                clock.advance(0.25)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    stat.flush()
    assert (0, "recursive") == (recursive(1), recursive.__name__)
    stat.flush()
    assert [1, 2] == asyncio.run(main())
    stat.flush()
    sums = [(event.window.count, event.window.sum) for event in events]
    assert [(2, 0.25 + 1.75), (2, 2.0 + 4.0), (2, 1.0 + 3.0)] == sums


@pytest.mark.parametrize("window_ms", [36, 120])
def test_windows_follow_the_systems_clock(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], window_ms: int
) -> None:
    """Long windows use a coarser clock than short ones: both end in time, by add() or expiry, and do not overlap."""
    made_ns = time.time_ns()
    stat, added, deadline = make_stat(window_size=window_ms / 1000), 0, time.monotonic() + 60
    while len(events) < 3:
        assert time.monotonic() < deadline
        stat.add(1.0)
        added += 1
        if added % 2:
            monitel.close_expired_windows()
    stat.flush()
    times_ns = [time_ns for event in events for time_ns in (event.window.start_ns, event.window.end_ns)]
    everything_ns = [made_ns, *times_ns, time.time_ns()]
    assert sorted(everything_ns) == everything_ns
    assert added == sum(counts(events))


def test_samples_of_a_short_window_are_of_its_own_time(make_stat: MakeStat, events: list[Any]) -> None:
    """A window of 9 ms uses a fine clock: no sample that was added after a window's end is in that window."""
    size_ns = 9_000_000
    stat, moments, deadline = make_stat(window_size=size_ns / 1e9), [], time.monotonic() + 60
    while len(events) < 20:
        assert time.monotonic() < deadline
        before_ns = time.monotonic_ns()
        stat.add(1.0)
        moments.append((before_ns // size_ns, time.monotonic_ns() // size_ns))
    for count in counts(events):
        of_window, moments = moments[:count], moments[count:]
        assert max(before for before, _ in of_window) <= min(after for _, after in of_window)
