"""HISTOGRAM and STDDEV of a Stat: what windows, events and readings say, and what is paid by whom."""

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
    """HISTOGRAM gives four keys, STDDEV one, after torch's."""
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


def test_only_what_was_asked_for(monitel: ModuleType, make_stat: MakeStat, events: list[Any]) -> None:
    """Without HISTOGRAM there is no distribution and no quantile, without STDDEV no standard deviation."""
    stat = make_stat("x", [monitel.MEAN])
    stat.add(1)
    stat.flush()
    window = events[0].window
    assert (None, None, {"mean": 1.0}) == (window.histogram, window.stddev, window.values())
    for ask in (stat.quantile, window.quantile):
        with pytest.raises(ValueError, match=r"'x' collects no HISTOGRAM: put monitel\.HISTOGRAM into"):
            ask(0.5)
    with pytest.raises(ValueError, match=r"'x' collects no STDDEV: put monitel\.STDDEV"):
        window.value(monitel.STDDEV)
    with pytest.raises(ValueError, match="HISTOGRAM is no number"):
        window.value(monitel.HISTOGRAM)


def test_quantile_is_of_the_last_closed_window(monitel: ModuleType, make_stat: MakeStat) -> None:
    """As get(): 0.0 before a window was closed, never of the open one."""
    stat = make_stat("x", [monitel.HISTOGRAM])
    stat.add(5)
    assert 0.0 == stat.quantile(0.5)
    with pytest.raises(ValueError, match="q must be from 0 to 1"):
        stat.quantile(2)
    stat.flush()
    stat.add(7)
    assert (5.0, 5.0, {}) == (stat.quantile(0.5), stat.quantile(1), stat.get())


def test_each_window_has_its_own(monitel: ModuleType, make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A window starts empty and as fine as the first, whatever was in the one before."""
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
def test_what_is_not_finite(make_stat: MakeStat, events: list[Any], bad: float) -> None:
    """It counts in the window, and makes mean and stddev NaN; the distribution is that of the others."""
    stat = make_stat()
    for sample in (1.0, bad, 3.0):
        stat.add(sample)
    stat.flush()
    window = events[0].window
    assert (3, 2, 1, 4.0) == (window.count, window.histogram.count, window.histogram.nonfinite, window.histogram.sum)
    assert (1.0, 3.0) == (window.quantile(0), window.quantile(1))
    assert math.isnan(window.stddev)


def test_stddev_of_large_numbers_that_differ_little(make_stat: MakeStat, events: list[Any]) -> None:
    """Welford's way keeps its digits where the sum of squares loses them all."""
    stat = make_stat()
    for sample in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        stat.add(sample)
    stat.flush()
    assert math.sqrt(22.5) == pytest.approx(events[0].window.stddev, rel=1e-12)


def test_a_forked_child_starts_empty(run_script: Any) -> None:
    """What the parent has collected is in the parent's distribution only."""
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


def test_no_memory_unless_asked_for(monitel: ModuleType, twin: str) -> None:
    """A Stat without a distribution pays nothing for them; one with a histogram pays for two sides of 160 buckets."""

    def bytes_each(aggregations: Any) -> float:
        """Return what one Stat allocates: the median, since some make a table grow, and other threads allocate."""
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
    spread = bytes_each([monitel.MEAN, monitel.STDDEV])
    histogram = bytes_each([monitel.MEAN, monitel.HISTOGRAM])
    assert spread - plain < 100
    assert histogram - plain < 3000
    if twin == "c":
        assert histogram - plain > 160 * 8 * 2


@pytest.mark.parametrize("max_samples", [2**63 - 1, 40])
def test_signal_handler_adds_where_buckets_change(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], max_samples: int
) -> None:
    """A signal handler that adds and flushes, while samples make the buckets coarser, leaves windows that are whole."""
    if sys.version_info < (3, 11) and monitel._window.Accumulator.__module__.endswith("_py"):
        pytest.skip("CPython 3.10 runs signal handlers between any two lines; docs/stats.md says what that means")
    stat = make_stat("x", [monitel.COUNT, monitel.SUM, monitel.HISTOGRAM, monitel.STDDEV], 0.001, max_samples)
    random_number = random.Random(11).getrandbits
    interrupts = 0

    def interrupt(_number: int, _frame: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        stat.add(2.0 ** -(interrupts % 30))
        if interrupts % 3 == 0:
            monitel.flush()

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        deadline = time.monotonic() + 60
        while interrupts < 1000:
            assert time.monotonic() < deadline
            stat.add(float(random_number(2 + random_number(4) % 13)))  # up to 2**15: sums are exact
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
    """No sample is lost between threads, in the buckets neither."""
    stat = make_stat(window_size=math.inf)

    def add() -> None:
        for sample in range(5000):
            stat.add(float(sample))

    run_threads(*[add] * 4)
    stat.flush()
    (window,) = (event.window for event in events)
    assert (20_000, 20_000) == (window.count, window.histogram.count)
    assert 4 * sum(range(5000)) == window.histogram.sum
