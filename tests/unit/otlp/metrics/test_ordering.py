"""Points of any windows in any order of arrival: times, totals, merged points, and values that are not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY

import monitel
import monitel_otlp
from monitel import COUNT, MAX, MEAN, MIN, SUM, VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    from tests.support.inbox import Point
    from tests.support.receiver import Receiver

MILLISECOND_NS = 1_000_000
EPOCH_NS = 1_767_225_600_000_000_000
DELTA = 1
ALL = (COUNT, SUM, MEAN, MAX, MIN, VALUE)
SERIES: list[tuple[str, dict[str, Any]]] = [
    ("a", {}),
    ("a", {"k": True}),
    ("a", {"k": 1}),
    ("a", {"k": "1"}),
    ("b", {}),
]
MONOTONIC = {"b"}


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

    @property
    def is_summed(self) -> bool:
        """True if the sum of the samples belongs to the total."""
        return math.isfinite(self.sum) and not (SERIES[self.series][0] in MONOTONIC and self.sum < 0)

    def log(self) -> None:
        """Log the window to all handlers, as a Stat does when it closes a window."""
        name, attributes = SERIES[self.series]
        definition = monitel.StatDefinition(
            name, ALL, "", "", MappingProxyType(attributes), monotonic=name in MONOTONIC
        )
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


def exported(receiver: Receiver, batches: list[list[Closed]]) -> Iterator[tuple[list[Closed], list[Point]]]:
    """Yield each batch with its points, exported by a pipeline that is flushed after each batch."""
    instance = {"service.instance.id": str(uuid4())}  # no pipeline continues the series of another one
    with monitel_otlp.configure(
        endpoint=receiver.url, spool_dir="spool", export_interval=3600.0, resource_attributes=instance
    ) as pipeline:
        for batch in batches:
            taken = len(receiver.requests)
            for closed in batch:
                closed.log()
            assert pipeline.force_flush(DEADLINE)
            points = [point for request in receiver.requests[taken:] for point in request.points]
            yield batch, [point for point in points if not point.metric.startswith("monitel.")]


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


def total(group: list[Closed]) -> float:
    """Return the total of all sums that belong to the total."""
    return sum(closed.sum for closed in group if closed.is_summed)


def check_gauges(groups: list[tuple[int, list[Closed]]], found: dict[str, list[Point]]) -> None:
    """Compare the gauges of a series, by aggregation, with the expected points."""
    for suffix in ("mean", "value", "min", "max"):
        assert [end for end, _ in groups] == [point.time_ns - EPOCH_NS for point in found[suffix]]
        assert {"gauge"} >= {point.kind for point in found[suffix]}
    for index, (_, group) in enumerate(groups):
        value = {suffix: found[suffix][index].value for suffix in ("mean", "value", "min", "max")}
        count = sum(len(closed.samples) for closed in group)
        assert repr(sum(closed.sum for closed in group) / count) == repr(value["mean"])
        assert repr(group[-1].samples[-1]) == repr(value["value"])
        assert is_extreme(min, group, value["min"])
        assert is_extreme(max, group, value["max"])


def test_cumulative_points_of_any_windows(receiver: Receiver) -> None:
    """Times of a series ascend by at least a millisecond, gauges match the windows, and totals are exact."""

    @settings(max_examples=30)
    @given(batches(anything, STEPS))
    def check(batches: list[list[Closed]]) -> None:
        before = dict.fromkeys(range(len(SERIES)), 0)
        handed_over: dict[int, list[Closed]] = {series: [] for series in before}
        starts: dict[int, set[int]] = {series: set() for series in before}
        for batch, points in exported(receiver, batches):
            expected_metrics = 0
            for series in before:
                own = [closed for closed in batch if closed.series == series]
                handed_over[series] += own
                groups = merged(own, before[series])
                expected_metrics += 6 * len(groups)
                every = {each.suffix: of_series(points, series, f".{each.suffix}") for each in ALL}
                if groups and not before[series]:
                    expected_metrics += 2
                    zeros = [every[suffix].pop(0) for suffix in ("count", "sum")]
                    begin = min(*(closed.start for closed in own), groups[0][0] - MILLISECOND_NS)
                    assert [(begin, 0)] * 2 == [(point.time_ns - EPOCH_NS, point.value) for point in zeros]
                check_gauges(groups, every)
                for suffix, monotonic in (("count", True), ("sum", SERIES[series][0] in MONOTONIC)):
                    assert [end for end, _ in groups] == [point.time_ns - EPOCH_NS for point in every[suffix]]
                    assert {(CUMULATIVE, monotonic)} >= {(each.temporality, each.monotonic) for each in every[suffix]}
                    values = [point.value for point in every[suffix]]
                    assert sorted(values) == values or not monotonic
                    starts[series] |= {point.start_ns for point in every[suffix]}
                if groups:
                    before[series] = groups[-1][0]
                    assert sum(len(closed.samples) for closed in handed_over[series]) == every["count"][-1].value
                    assert total(handed_over[series]) == every["sum"][-1].value
                    assert max(starts[series]) < every["count"][0].time_ns
            assert expected_metrics == len(points)
        assert all(len(found) <= 1 for found in starts.values())  # the start of a total stays

    check()


def test_delta_points_of_any_windows(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Monotonic sums are those of each window, or group of merged windows; their periods do not overlap."""
    monkeypatch.setenv(TEMPORALITY, "delta")

    @settings(max_examples=30)
    @given(batches(anything, STEPS))
    def check(batches: list[list[Closed]]) -> None:
        before = dict.fromkeys(range(len(SERIES)), 0)
        handed_over: dict[int, list[Closed]] = {series: [] for series in before}
        for batch, points in exported(receiver, batches):
            for series, (name, _) in enumerate(SERIES):
                own = [closed for closed in batch if closed.series == series]
                handed_over[series] += own
                groups = merged(own, before[series])
                every = {each.suffix: of_series(points, series, f".{each.suffix}") for each in ALL}
                check_gauges(groups, every)
                deltas: list[tuple[str, list[tuple[int, float]]]] = [
                    ("count", [(end, sum(len(each.samples) for each in group)) for end, group in groups])
                ]
                if name in MONOTONIC:
                    summed = [(end, group) for end, group in groups if any(closed.is_summed for closed in group)]
                    deltas.append(("sum", [(end, total(group)) for end, group in summed]))
                elif groups:
                    zeros = 0 if before[series] else 1
                    assert {(CUMULATIVE, False)} == {(each.temporality, each.monotonic) for each in every["sum"]}
                    assert [end for end, _ in groups] == [each.time_ns - EPOCH_NS for each in every["sum"][zeros:]]
                    assert total(handed_over[series]) == every["sum"][-1].value
                for suffix, expected in deltas:
                    assert expected == [(point.time_ns - EPOCH_NS, point.value) for point in every[suffix]]
                    assert {(DELTA, True)} >= {(each.temporality, each.monotonic) for each in every[suffix]}
                    starts = {point.time_ns - EPOCH_NS: point.start_ns - EPOCH_NS for point in every[suffix]}
                    last = before[series] or -EPOCH_NS
                    for end, group in groups:
                        begin = min(closed.start for closed in group)
                        begin = begin if begin < end else end - MILLISECOND_NS
                        assert max(begin, last) == starts.get(end, max(begin, last)) < end
                        last = end
                if groups:
                    before[series] = groups[-1][0]
            assert {point.metric for point in points} <= {f"{name}.{each.suffix}" for name, _ in SERIES for each in ALL}

    check()
