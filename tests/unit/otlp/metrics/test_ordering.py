"""Points of any windows in any order of arrival: times, totals, merged points, and values that are not finite."""

import math
from collections.abc import Callable, Iterator
from itertools import count
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.inbox import DEADLINE, TEMPORALITY, Point
from tests.support.receiver import Receiver

import monitel
import monitel_otlp
from monitel import COUNT, MAX, MEAN, MIN, SUM, VALUE
from monitel.stats import window_sinks
from monitel.stats.window import OpenWindow, encode

Group = tuple[int, list[monitel.Window]]  # the time of a point, and its windows

MILLISECOND_NS = 1_000_000
EPOCH_NS = 1_767_225_600_000_000_000
_numbers = count(1)
ALL = (COUNT, SUM, MEAN, MAX, MIN, VALUE)
SERIES: list[tuple[str, dict[str, Any]]] = [
    *(("a", {}), ("a", {"k": True}), ("a", {"k": 1}), ("a", {"k": "1"})),
    ("rising", {}),
]


def window(series: int, samples: list[float], start_ns: int, end_ns: int) -> monitel.Window:
    name, attributes = SERIES[series]
    definition = monitel.StatDefinition(name, ALL, "", "", MappingProxyType(attributes), monotonic=name == "rising")
    total = math.fsum(samples) if all(map(math.isfinite, samples)) else sum(samples)
    extremes = min(samples), max(samples)
    return monitel.Window(definition, start_ns, end_ns, len(samples), total, *extremes, samples[-1], 0, None, None)


eighths = st.integers(-8000, 8000).map(lambda number: number / 8)  # added up exactly, in any order
anything = eighths | eighths.map(abs) | st.sampled_from([math.nan, math.inf, -math.inf])
steps = st.sampled_from([0, 1, MILLISECOND_NS - 1, MILLISECOND_NS]) | st.integers(-2_000_000, 3_000_000)


@st.composite
def batches(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[list[monitel.Window]]:
    """Draw the windows between exports; each window ends one step after the previous one."""
    found: list[list[monitel.Window]] = []
    now_ns = EPOCH_NS + 60 * 10**9
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)):
        found.append([])
        for _ in range(size):
            now_ns += draw(steps)
            samples = draw(st.lists(anything, min_size=1, max_size=3))
            begin_ns = now_ns - draw(st.integers(0, 2_000_000))
            found[-1].append(window(draw(st.integers(0, len(SERIES) - 1)), samples, begin_ns, now_ns))
    return found


def exported(
    receiver: Receiver, batches: list[list[monitel.Window]]
) -> Iterator[tuple[list[monitel.Window], list[Point]]]:
    options = {"endpoint": receiver.url, "spool_dir": "spool", "export_interval": 3600.0}
    instance = {"service.instance.id": str(uuid4())}  # no pipeline continues the series of another one
    with monitel_otlp.configure(**options, resource_attributes=instance) as pipeline:  # type: ignore[arg-type]
        for batch in batches:
            taken = len(receiver.requests)
            for closed in batch:
                serial = -1 - [*map(repr, SERIES)].index(repr((closed.name, dict(closed.attributes))))
                content = encode(OpenWindow(serial, next(_numbers), True, 0, *closed[1:]))
                window_sinks.send(closed.definition, closed, content)
            assert pipeline.force_flush(DEADLINE)
            points = [point for request in receiver.requests[taken:] for point in request.points]
            yield batch, [point for point in points if not point.metric.startswith("monitel.")]


def merged(windows: list[monitel.Window], last_ns: int) -> list[Group]:
    """Return the expected points of the windows of one series.

    All points, including the last one of the previous batch at ``last_ns``, are at least a millisecond apart.
    """
    found: list[Group] = []
    for closed in sorted(windows, key=lambda closed: closed.end_ns):
        end_ns = max(closed.end_ns, last_ns + MILLISECOND_NS)
        if found and end_ns < found[-1][0] + MILLISECOND_NS:
            found[-1] = (end_ns, [*found[-1][1], closed])
        else:
            found.append((end_ns, [closed]))
    return found


def is_summed(closed: monitel.Window) -> bool:
    return math.isfinite(closed.sum) and not (closed.name == "rising" and closed.sum < 0)


def amount(suffix: str, windows: list[monitel.Window]) -> float:
    return (
        sum(each.count for each in windows)
        if suffix == "count"
        else sum(each.sum for each in windows if is_summed(each))
    )


def check_gauges(groups: list[Group], found: dict[str, list[Point]]) -> None:
    """Compare the gauges of a series, by aggregation, with the expected points."""
    for suffix in ("mean", "value", "min", "max"):
        assert [end_ns for end_ns, _ in groups] == [point.time_ns for point in found[suffix]]
    for index, (_, group) in enumerate(groups):
        value = {suffix: found[suffix][index].value for suffix in ("mean", "value", "min", "max")}
        assert repr(sum(each.sum for each in group) / sum(each.count for each in group)) == repr(value["mean"])
        assert repr(group[-1].last) == repr(value["value"])
        for suffix, extreme in (("min", min), ("max", max)):
            extremes = [getattr(each, suffix) for each in group]
            if any(math.isnan(each.sum) for each in group):  # which of them is found depends on the order
                assert math.isnan(value[suffix]) or any(value[suffix] == each for each in extremes)
            else:
                assert extreme(extremes) == value[suffix]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_points_of_any_windows(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, temporality: str) -> None:
    """Gauges match the windows, and totals are exact; starts, order and periods are checked as of every test."""
    monkeypatch.setenv(TEMPORALITY, temporality)

    @settings(max_examples=30)
    @given(batches())
    def check(batches: list[list[monitel.Window]]) -> None:
        last = dict.fromkeys(range(len(SERIES)), 0)
        logged: dict[int, list[monitel.Window]] = {series: [] for series in last}
        for batch, points in exported(receiver, batches):
            for series, (name, attributes) in enumerate(SERIES):
                own = [each for each in batch if (each.name, repr(dict(each.attributes))) == (name, repr(attributes))]
                logged[series] += own
                groups = merged(own, last[series])
                of_series = [each for each in points if repr(attributes) == repr(each.attributes)]
                found = {each.suffix: [p for p in of_series if p.metric == f"{name}.{each.suffix}"] for each in ALL}
                check_gauges(groups, found)
                for suffix in ("count", "sum"):
                    totals = [(each.time_ns, each.value) for each in found[suffix]]
                    if temporality == "delta" and (suffix == "count" or name == "rising"):
                        summed = [each for each in groups if suffix == "count" or any(map(is_summed, each[1]))]
                        assert [(end_ns, amount(suffix, group)) for end_ns, group in summed] == totals
                    elif groups:
                        totals = totals if last[series] else totals[1:]  # the first one is a zero
                        assert [end_ns for end_ns, _ in groups] == [time_ns for time_ns, _ in totals]
                        assert amount(suffix, logged[series]) == totals[-1][1]
                last[series] = groups[-1][0] if groups else last[series]
            assert {point.metric for point in points} <= {f"{name}.{each.suffix}" for name, _ in SERIES for each in ALL}

    check()
