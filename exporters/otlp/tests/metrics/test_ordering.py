"""Points of any windows in any order of arrival: times, totals, merged points, and values that are not finite."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from exporters.otlp.tests.inbox import Point, points_of
from hypothesis import given, settings
from hypothesis import strategies as st

import monitel
import monitel_otlp
from monitel.aggregation import TORCHS
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MILLISECOND_NS = 1_000_000
EPOCH_NS = 1_767_225_600_000_000_000
DELTA = 1
SERIES: list[tuple[str, dict[str, Any]]] = [
    ("a", {}),
    ("a", {"k": True}),
    ("a", {"k": 1}),
    ("a", {"k": "1"}),
    ("b", {}),
]


@dataclass(frozen=True)
class Closed:
    """A closed window.

    Attributes:
        series: Index into ``SERIES``.
        samples: Samples.
        start: Start in ns after ``EPOCH_NS``.
        end: End in ns after ``EPOCH_NS``.
    """

    series: int
    samples: tuple[float, ...]
    start: int
    end: int

    @property
    def sum(self) -> float:
        """Sum of the samples, added up as a Stat does."""
        return math.fsum(self.samples) if all(map(math.isfinite, self.samples)) else sum(self.samples)

    def log(self) -> None:
        """Log the window to all handlers, as a Stat does when it closes a window."""
        name, attributes = SERIES[self.series]
        definition = monitel.StatDefinition(name, TORCHS, "", "", MappingProxyType(attributes), monotonic=False)
        window = monitel.Window(
            definition,
            EPOCH_NS + self.start,
            EPOCH_NS + self.end,
            len(self.samples),
            self.sum,
            min(self.samples),
            max(self.samples),
            self.samples[-1],
            0,
            None,
            None,
        )
        monitel.log_event(monitel.Event.of_window(window))


STEPS = st.sampled_from([0, 1, MILLISECOND_NS - 1, MILLISECOND_NS]) | st.integers(-2_000_000, 3_000_000)


@st.composite
def batches(
    draw: Callable[[st.SearchStrategy[Any]], Any], samples: st.SearchStrategy[float], steps: st.SearchStrategy[int]
) -> list[list[Closed]]:
    """Draw the windows between exports; each window ends one step after the previous one."""
    found: list[list[Closed]] = []
    now = 60 * 10**9
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)):
        found.append([])
        for _ in range(size):
            now += draw(steps)
            values = draw(st.lists(samples, min_size=1, max_size=3))
            began = now - draw(st.integers(0, 2_000_000))
            found[-1].append(Closed(draw(st.integers(0, len(SERIES) - 1)), tuple(values), began, now))
    return found


eighths = st.integers(-8000, 8000).map(lambda number: number / 8)  # added up exactly, in any order
anything = eighths | eighths.map(abs) | st.sampled_from([math.nan, math.inf, -math.inf])


def exported(batches: list[list[Closed]], temporality: str) -> Iterator[tuple[list[Closed], list[Point]]]:
    """Yield each batch with its points, exported by a pipeline that is flushed after each batch."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
        with monitel_otlp.configure(spool_dir=root, export_interval=3600.0) as pipeline:
            taken = 0
            for batch in batches:
                for closed in batch:
                    closed.log()
                assert pipeline.force_flush(10)
                requests = list(Spool(Path(pipeline.spool_dir)).peek())
                points = [point for request in requests[taken:] for point in points_of(request.message())]
                taken = len(requests)
                yield batch, [point for point in points if point.scope == "monitel"]


def of_series(points: list[Point], series: int, suffix: str) -> list[Point]:
    """Return the points of one metric of a series, in the order of sending; ``True`` and ``1`` are different values."""
    name, attributes = SERIES[series]
    return [point for point in points if point.metric == name + suffix and repr(attributes) == repr(point.attributes)]


def merged(windows: list[Closed], last_ns: int) -> list[tuple[int, list[Closed]]]:
    """Return the expected points of the windows of one series: the time and the windows of each.

    All points, including the last one of the previous batch at ``last_ns``, are at least a millisecond apart.
    """
    found: list[tuple[int, list[Closed]]] = []
    for closed in sorted(windows, key=lambda closed: closed.end):
        end = max(closed.end, last_ns + MILLISECOND_NS)
        if found and end < found[-1][0] + MILLISECOND_NS:
            found[-1] = (end, [*found[-1][1], closed])
        else:
            found.append((end, [closed]))
    return found


def is_extreme(expected: Callable[[list[float]], float], group: list[Closed], actual: float) -> bool:
    """Return True if ``actual`` is the smallest or largest sample, or NaN if a sample is NaN."""
    samples = [sample for closed in group for sample in closed.samples]
    if any(map(math.isnan, samples)):
        return math.isnan(actual) or actual in samples
    return actual == expected(samples)


def finite(group: list[Closed]) -> float:
    """Return the total of all sums that are finite."""
    return sum(closed.sum for closed in group if math.isfinite(closed.sum))


@settings(max_examples=80, derandomize=True)
@given(batches(anything, STEPS))
def test_cumulative_points_of_any_windows(batches: list[list[Closed]]) -> None:
    """Times of a series ascend by at least a millisecond, gauges match the windows, and totals are exact."""
    before = dict.fromkeys(range(len(SERIES)), 0)
    handed_over: dict[int, list[Closed]] = {series: [] for series in before}
    starts: dict[int, set[int]] = {series: set() for series in before}
    for batch, points in exported(batches, "cumulative"):
        expected_metrics = 0
        for series in before:
            own = [closed for closed in batch if closed.series == series]
            handed_over[series] += own
            groups = merged(own, before[series])
            expected_metrics += 6 * len(groups)
            every = {each.suffix: of_series(points, series, f".{each.suffix}") for each in TORCHS}
            begin = min((closed.start for closed in own), default=0)
            if groups and not before[series] and begin + MILLISECOND_NS <= groups[0][0]:
                expected_metrics += 2
                zeros = [every[suffix].pop(0) for suffix in ("count", "sum")]
                assert [(begin, 0)] * 2 == [(point.time_ns - EPOCH_NS, point.value) for point in zeros]
            for found in every.values():
                assert [end for end, _ in groups] == [point.time_ns - EPOCH_NS for point in found]
            for index, (_, group) in enumerate(groups):
                value = {suffix: found[index].value for suffix, found in every.items()}
                count = sum(len(closed.samples) for closed in group)
                assert repr(sum(closed.sum for closed in group) / count) == repr(value["mean"])
                assert repr(group[-1].samples[-1]) == repr(value["value"])
                assert is_extreme(min, group, value["min"])
                assert is_extreme(max, group, value["max"])
            if groups:
                before[series] = groups[-1][0]
                counts = [point.value for point in every["count"]]
                assert sorted(counts) == counts
                assert sum(len(closed.samples) for closed in handed_over[series]) == counts[-1]
                assert finite(handed_over[series]) == every["sum"][-1].value
                starts[series] |= {point.start_ns for point in every["count"] + every["sum"]}
                assert max(starts[series]) <= every["count"][0].time_ns
        assert expected_metrics == len(points)
    assert all(len(found) <= 1 for found in starts.values())  # the start of a total stays


@settings(max_examples=80, derandomize=True)
@given(batches(anything, STEPS))
def test_delta_points_of_any_windows(batches: list[list[Closed]]) -> None:
    """Each window, or group of merged windows, is a histogram with one bucket; each sample is counted once."""
    before = dict.fromkeys(range(len(SERIES)), 0)
    for batch, points in exported(batches, "delta"):
        for series in before:
            groups = merged([closed for closed in batch if closed.series == series], before[series])
            histograms = of_series(points, series, "")
            last_ns = EPOCH_NS + before[series]
            for (end, group), point in zip(groups, histograms, strict=True):
                assert end == point.time_ns - EPOCH_NS
                count = sum(len(closed.samples) for closed in group)
                assert (DELTA, [count], []) == (
                    point.temporality,
                    list(point.proto.bucket_counts),
                    list(point.proto.explicit_bounds),
                )
                assert count == point.proto.count
                assert is_extreme(min, group, point.proto.min)
                assert is_extreme(max, group, point.proto.max)
                start = EPOCH_NS + group[0].start
                assert point.start_ns == start if start >= last_ns else start <= point.start_ns <= point.time_ns
                last_ns = point.time_ns
            values = of_series(points, series, ".value")
            assert [repr(group[-1].samples[-1]) for _, group in groups] == [repr(point.value) for point in values]
            if groups:
                before[series] = groups[-1][0]
        kinds = {"", ".value", ".total"}
        assert {point.metric for point in points} <= {name + kind for name, _ in SERIES for kind in kinds}


@settings(max_examples=80, derandomize=True)
@given(batches(anything, STEPS))
def test_delta_sums_of_any_windows(batches: list[list[Closed]]) -> None:
    """The exact sum is in the histogram, or in ``.total`` from the first request with a negative sample on."""
    signed = dict.fromkeys(range(len(SERIES)), False)
    before = dict.fromkeys(range(len(SERIES)), 0)
    for batch, points in exported(batches, "delta"):
        for series in before:
            own = [closed for closed in batch if closed.series == series]
            signed[series] |= any(min(closed.samples) < 0 for closed in own)
            expected: list[tuple[str, int, float]] = []
            for end, group in merged(own, before[series]):
                if any(math.isfinite(closed.sum) for closed in group):
                    expected.append(("total" if signed[series] else "sum", end, finite(group)))
                before[series] = end
            sums = [
                ("sum", point.time_ns - EPOCH_NS, point.value)
                for point in of_series(points, series, "")
                if point.proto.HasField("sum")
            ]
            totals = [("total", point.time_ns - EPOCH_NS, point.value) for point in of_series(points, series, ".total")]
            assert expected == sorted(sums + totals, key=lambda each: each[1])


@settings(max_examples=80, derandomize=True)
@given(batches(anything, STEPS))
def test_delta_periods_do_not_overlap(batches: list[list[Closed]]) -> None:
    """A point of a series begins at the end of the previous one or later, across requests."""
    found: dict[int, list[Point]] = {series: [] for series in range(len(SERIES))}
    for _, points in exported(batches, "delta"):
        for series, own in found.items():
            own.extend(of_series(points, series, ""))
    for own in found.values():
        assert all(later.start_ns >= earlier.time_ns for earlier, later in pairwise(own))
