"""HISTOGRAM and STDDEV of a Stat: windows, events, readings, and memory."""

from __future__ import annotations

import math
import random
import signal
import statistics
import sys
import time
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


def test_event_carries_percentiles_and_stddev(monitel: ModuleType, make_stat: MakeStat, events: list[Any]) -> None:
    """HISTOGRAM adds four keys, STDDEV one, after torch's keys."""
    stat = make_stat("step.time")
    for sample in range(1, 101):
        stat.add(sample)
    stat.flush()
    suffixes = ["value", "mean", "count", "sum", "max", "min", "p50", "p90", "p95", "p99", "stddev"]
    assert [f"step.time.{suffix}" for suffix in suffixes] == list(events[0].data)
    window = events[0].window
    for percent in (50, 90, 95, 99):
        assert percent == pytest.approx(events[0].data[f"step.time.p{percent}"], rel=window.histogram.relative_error)
    assert math.sqrt(sum((n - 50.5) ** 2 for n in range(1, 101)) / 100) == pytest.approx(window.stddev, rel=1e-14)
    assert window.values() == {key.rpartition(".")[2]: value for key, value in events[0].data.items()}
    assert (100, 5050.0, 1.0, 100.0) == (
        *(window.histogram.count, window.histogram.sum, window.histogram.min, window.histogram.max),
    )


def test_only_requested_aggregations(monitel: ModuleType, make_stat: MakeStat, events: list[Any]) -> None:
    """Without HISTOGRAM there is no distribution and no quantile, without STDDEV no standard deviation."""
    stat = make_stat("x", [monitel.MEAN])
    stat.add(1)
    stat.flush()
    window = events[0].window
    assert (None, None, {"mean": 1.0}) == (window.histogram, window.stddev, window.values())
    for ask in (stat.quantile, window.quantile):
        with pytest.raises(ValueError, match=r"'x' does not collect HISTOGRAM: add monitel\.HISTOGRAM to"):
            ask(0.5)
    with pytest.raises(ValueError, match=r"'x' does not collect STDDEV: add monitel\.STDDEV"):
        window.value(monitel.STDDEV)
    with pytest.raises(ValueError, match="HISTOGRAM is not a number"):
        window.value(monitel.HISTOGRAM)


def test_quantile_is_of_the_last_closed_window(monitel: ModuleType, make_stat: MakeStat) -> None:
    """As with get(), it is 0.0 before a window was closed, and never of the open window."""
    stat = make_stat("x", [monitel.HISTOGRAM])
    stat.add(5)
    assert 0.0 == stat.quantile(0.5)
    with pytest.raises(ValueError, match="q must be between 0 and 1"):
        stat.quantile(2)
    stat.flush()
    stat.add(7)
    assert (5.0, 5.0, {}) == (stat.quantile(0.5), stat.quantile(1), stat.get())


def test_windows_have_separate_distributions(
    monitel: ModuleType, make_stat: MakeStat, clock: Any, events: list[Any]
) -> None:
    """A window starts empty, at the largest scale, whatever the previous window had."""
    stat = make_stat("x", [monitel.HISTOGRAM, monitel.STDDEV], 60.0, 3)
    for samples in ([1e-9, -4.0, 1e9], [2.0], [0.0, 3.0]):
        for sample in samples:
            stat.add(sample)
        clock.advance(60)
    stat.flush()
    histograms = [event.window.histogram for event in events]
    assert [monitel.Histogram.of(samples) for samples in ([1e-9, -4.0, 1e9], [2.0], [0.0, 3.0])] == histograms
    assert [0.0, 1.5] == [event.window.stddev for event in events[1:]]
    assert 1 < histograms[1].scale - histograms[0].scale


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_samples_that_are_not_finite(make_stat: MakeStat, events: list[Any], bad: float) -> None:
    """Such samples count in the window, and mean and stddev are NaN; the distribution has the finite samples only."""
    stat = make_stat()
    for sample in (1.0, bad, 3.0):
        stat.add(sample)
    stat.flush()
    window = events[0].window
    assert (3, 2, 1, 4.0) == (window.count, window.histogram.count, window.histogram.nonfinite, window.histogram.sum)
    assert (1.0, 3.0) == (window.quantile(0), window.quantile(1))
    assert math.isnan(window.stddev)


def test_stddev_of_large_numbers_that_differ_little(make_stat: MakeStat, events: list[Any]) -> None:
    """Welford's algorithm is precise where the sum of squares is not."""
    stat = make_stat()
    for sample in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        stat.add(sample)
    stat.flush()
    assert math.sqrt(22.5) == pytest.approx(events[0].window.stddev, rel=1e-12)


def test_a_forked_child_starts_empty(run_script: Any) -> None:
    """The parent's samples are in the parent's distribution only."""
    ended = run_script(
        """
stat = Stat("x", [monitel.HISTOGRAM, monitel.STDDEV], 60.0)
stat.add(1.0)
monitel.register_event_handler(
    lambda event: say(event.window.count, event.window.histogram.count, event.window.histogram.max, event.window.stddev)
)
if os.fork() == 0:
    stat.add(8.0)
    stat.flush()
    os._exit(0)
os.wait()
stat.flush()
"""
    )
    assert ["1 1 8.0 0.0", "1 1 1.0 0.0"] == ended.lines


def test_no_memory_unless_requested(monitel: ModuleType, twin: str) -> None:
    """Distributions take no memory in other Stats; a histogram takes two sides of 160 buckets."""

    def bytes_each(aggregations: Any) -> float:
        """Return the bytes that one Stat allocates: the median, because tables grow and other threads allocate."""
        kept = [None] * 200
        taken = []
        tracemalloc.start()
        for number in range(200):
            before = tracemalloc.get_traced_memory()[0]
            kept[number] = monitel.Stat("x", aggregations, 60.0)
            taken.append(tracemalloc.get_traced_memory()[0] - before)
        tracemalloc.stop()
        return statistics.median(taken)

    plain = bytes_each([monitel.MEAN])
    stddev = bytes_each([monitel.MEAN, monitel.STDDEV])
    histogram = bytes_each([monitel.MEAN, monitel.HISTOGRAM])
    assert stddev - plain < 250  # the allocator's free lists are not traced
    assert histogram - plain < 3000
    if twin == "c":
        assert histogram - plain > 160 * 8 * 2


@pytest.mark.parametrize("max_samples", [2**63 - 1, 40])
def test_signal_handler_adds_where_buckets_change(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], max_samples: int
) -> None:
    """If a signal handler adds and flushes while the buckets change, all windows are consistent."""
    if sys.version_info < (3, 11) and monitel._window.Accumulator.__module__.endswith("_py"):
        pytest.skip("CPython 3.10 runs signal handlers between any two lines: see docs/reference/stats.md")
    stat = make_stat("x", [monitel.COUNT, monitel.SUM, monitel.HISTOGRAM, monitel.STDDEV], 0.001, max_samples)
    random_number = random.Random(11).getrandbits
    interrupts = 0

    def interrupt(_number: int, _frame: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        stat.add(2.0 ** -(interrupts % 30))
        if interrupts % 3 == 0:
            monitel.flush()
        if interrupts < 1000:  # not earlier: on a slow machine each handler would interrupt the previous one
            signal.setitimer(signal.ITIMER_REAL, 0.0001)

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
    try:
        deadline = time.monotonic() + 60
        while interrupts < 1000:
            assert time.monotonic() < deadline
            stat.add(float(random_number(2 + random_number(4) % 13)))  # at most 2**15, so that sums are exact
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    stat.flush()
    windows = [event.window for event in events]
    assert len(windows) > 20
    assert [window.count for window in windows] == [window.histogram.count for window in windows]
    assert [window.sum for window in windows] == [window.histogram.sum for window in windows]
    assert [(window.min, window.max) for window in windows] == [(w.histogram.min, w.histogram.max) for w in windows]
    for window in windows:
        edges = [edge for low, high, _ in window.histogram.buckets() for edge in (low, high)]
        assert all(one <= other for one, other in pairwise(edges))


def test_threads(make_stat: MakeStat, events: list[Any], run_threads: Any) -> None:
    """No sample of several threads is lost, neither in the count nor in the buckets."""
    stat = make_stat(window_size=math.inf)

    def add() -> None:
        for sample in range(5000):
            stat.add(float(sample))

    run_threads(*[add] * 4)
    stat.flush()
    (window,) = (event.window for event in events)
    assert (20_000, 20_000) == (window.count, window.histogram.count)
    assert 4 * sum(range(5000)) == window.histogram.sum
