"""Temporality decides the value and the start of monotonic sums and histograms, and nothing else."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.inbox import TEMPORALITY, points_of
from tests.support.producers import close_windows
from tests.unit.otlp.metrics.test_distributions import decoded
from tests.unit.otlp.raw.round_trip import ENCODED_RESOURCE, RESOURCE, Lost, replayed

import monitel
from monitel import COUNT, MEAN, SUM, Aggregation, Histogram, Stat
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.raw.forms import raw_windows
from monitel_otlp.sdk.metric_requests import MetricRequests

if TYPE_CHECKING:
    from tests.support.inbox import Point
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock
    from monitel_otlp.messages.request import FrozenRequest

PREFERENCES = ["cumulative", "delta", "lowmemory"]
DELTA, CUMULATIVE = 1, 2
START_NS = 1_767_225_600_000_000_000
SECOND_NS = 10**9

#: Suffix, kind and, for a sum, monotonicity of each metric of a Stat with all aggregations; True if it can be a delta.
METRICS = {
    **dict.fromkeys(("mean", "min", "max", "value", "stddev"), ("gauge", None, False)),
    **dict.fromkeys(("p50", "p90", "p95", "p99"), ("gauge", None, False)),
    "count": ("sum", True, True),
    "histogram": ("exponential_histogram", None, True),
}


@pytest.mark.parametrize("preference", PREFERENCES)
def test_names_and_kinds_do_not_depend_on_temporality(
    *, receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """A dashboard works with each preference; only counts, histograms and monotonic sums become deltas."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start(distributions="both")
    for name in ("loss", "tokens"):
        close_windows(Stat(name, list(Aggregation), 60.0, monotonic=name == "tokens"), clock, [1.0, 4.0], [2.0])
    assert pipeline.force_flush(60)
    found = {
        point.metric: (point.kind, point.monotonic, point.temporality)
        for point in receiver.all_points()
        if point.metric.startswith(("loss.", "tokens."))
    }
    delta = CUMULATIVE if preference == "cumulative" else DELTA
    expected = {}
    for name, monotonic in (("loss", False), ("tokens", True)):
        for suffix, (kind, of_sum, can_be_delta) in {**METRICS, "sum": ("sum", monotonic, monotonic)}.items():
            temporality = None if kind == "gauge" else delta if can_be_delta else CUMULATIVE
            expected[f"{name}.{suffix}"] = kind, of_sum, temporality
    assert expected == found
    values = {"loss.mean": [2.5, 2.0], "loss.max": [4.0, 2.0], "loss.min": [1.0, 2.0], "loss.sum": [5.0, 7.0]}
    assert values == {metric: receiver.values(metric) for metric in values}
    totals = [[2, 3], [5.0, 7.0]] if preference == "cumulative" else [[2, 1], [5.0, 2.0]]
    assert totals == [receiver.values("tokens.count"), receiver.values("tokens.sum")]


@pytest.mark.parametrize("preference", PREFERENCES)
def test_negative_sum_of_a_monotonic_stat_is_omitted(
    *, receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """A monotonic sum must not fall: backends take a fall for a restart. The window is counted as one without a sum."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start()
    stat = Stat("tokens", [COUNT, SUM, MEAN], 60.0, monotonic=True)
    close_windows(stat, clock, [5.0, -1.0], [-3.0, 1.0], [2.0])
    assert pipeline.force_flush(60)
    cumulative = preference == "cumulative"
    assert ([4.0, 4.0, 6.0] if cumulative else [4.0, 2.0]) == receiver.values("tokens.sum")
    assert ([2, 4, 5] if cumulative else [2, 2, 1]) == receiver.values("tokens.count")
    assert [2.0, -1.0, 2.0] == receiver.values("tokens.mean")
    assert pipeline.force_flush(60)
    assert 1 == max(receiver.values("monitel.stat.nonfinite"))


@pytest.mark.parametrize("preference", PREFERENCES)
def test_merged_windows_of_stats_that_differ_have_the_metrics_of_both(
    *, receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """The windows of two Stats of one name end less than 1 ms apart: no count and no sum is lost."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start(distributions="histogram")
    for aggregations in ([COUNT, monitel.HISTOGRAM], [SUM]):
        stat = Stat("tokens", aggregations, 60.0, monotonic=True)
        stat.add(3.0)
        clock.advance(0.0004)
        stat.flush()
    assert pipeline.force_flush(60)
    assert [[2], [6.0]] == [receiver.values("tokens.count"), receiver.values("tokens.sum")]
    assert [1] == [point.proto.count for point in receiver.points("tokens.histogram")]


class Given(NamedTuple):
    """A window to record.

    Attributes:
        name: Name of the Stat; ``"tokens"`` is monotonic.
        begin: Start in seconds after ``START_NS``.
        length: Length in seconds; negative if the clock was set back.
        samples: Samples.
    """

    name: str
    begin: int
    length: int
    samples: list[float]

    def window(self) -> monitel.Window:
        """Return the window."""
        monotonic = self.name == "tokens"
        definition = monitel.StatDefinition(
            self.name, tuple(Aggregation), "", "", MappingProxyType({}), monotonic=monotonic
        )
        start_ns = START_NS + self.begin * SECOND_NS
        return monitel.Window(
            definition,
            start_ns=start_ns,
            end_ns=start_ns + self.length * SECOND_NS,
            count=len(self.samples),
            sum=sum(self.samples),
            min=min(self.samples),
            max=max(self.samples),
            last=self.samples[-1],
            discarded=0,
            first_step=None,
            last_step=None,
            stddev=1.0,
            histogram=Histogram.of(self.samples),
        )

    def summed(self) -> float:
        """Return the part of the total that comes from the window."""
        total = sum(self.samples)
        return total if math.isfinite(total) and not (self.name == "tokens" and total < 0) else 0.0


eighths = st.integers(-80, 80).map(lambda number: number / 8)  # added up exactly, in any order
windows = st.lists(
    st.builds(
        Given,
        st.sampled_from(["loss", "tokens"]),
        st.integers(100, 400),
        st.integers(-100, 60),
        st.lists(eighths | eighths.map(abs) | st.just(math.nan), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=30,
)


def encoded(recorded: list[Given], temporality: str, capacity: int, live: set[int]) -> dict[str, list[Point]]:
    """Return the points of windows by metric.

    Args:
        recorded: The windows, in the order of the queue.
        temporality: Argument of the mapping.
        capacity: Limit of the queue.
        live: The indexes of windows after which the queue is encoded; the rest is written raw and replayed.
    """
    requests: list[FrozenRequest] = []
    lost = Lost()
    mapping = WindowMapping(temporality, START_NS + 250 * SECOND_NS, "both")
    queue = WindowQueue(capacity, 1 << 30)
    exporter = MetricRequests(mapping, lambda: 0, RESOURCE, requests.append, lost)
    for number, each in enumerate(recorded):
        queue.put(each.window())
        if number in live:
            exporter.add(queue.queue.take(capacity))
            exporter.flush()
    rest: Any = queue.queue.take(capacity)
    requests += replayed(raw_windows(rest, mapping, ENCODED_RESOURCE))
    assert [] == lost
    found: dict[str, list[Point]] = {}
    for request in requests:
        for point in points_of(request.message()):
            if not point.metric.startswith("monitel."):
                found.setdefault(point.metric, []).append(point)
    return found


def dropped(recorded: list[Given], capacity: int, live: set[int]) -> list[Given]:
    """Return the windows that a queue of this capacity drops."""
    queue: deque[Given] = deque()
    found = []
    for number, each in enumerate(recorded):
        if len(queue) == capacity:
            found.append(queue.popleft())
        queue.append(each)
        if number in live:
            queue.clear()
    return found


def merged(histograms: list[Histogram]) -> dict[float, int]:
    """Return the number of samples in each bucket, by its upper bound, of the distribution of all histograms."""
    total = Histogram.of([])
    for histogram in histograms:
        total = total.merge(histogram)
    return {upper: count for _, upper, count in total.buckets()}


@given(windows, st.sampled_from(["delta", "lowmemory"]), st.integers(1, 12), st.sets(st.integers(0, 29), max_size=4))
def test_deltas_add_up_to_the_totals(recorded: list[Given], preference: str, capacity: int, live: set[int]) -> None:
    """Delivered and dropped deltas are the total, whichever windows are merged, dropped, sent at once or replayed."""
    delta = encoded(recorded, preference, capacity, live)
    cumulative = encoded(recorded, "cumulative", capacity, live)
    assert set(delta) <= set(cumulative)
    away = dropped(recorded, capacity, live)
    for name in {each.name for each in recorded}:
        own, own_away = ([each for each in some if each.name == name] for some in (recorded, away))
        if not any(metric.startswith(name) for metric in cumulative):
            assert own == own_away
            continue
        count = sum(len(each.samples) for each in own)
        counts = [point.value for point in delta[f"{name}.count"]]
        assert count == sum(counts) + sum(len(each.samples) for each in own_away)
        total = sum(each.summed() for each in own)
        if name == "tokens":
            sums = [point.value for point in delta.get("tokens.sum", [])]
            assert total == sum(sums) + sum(each.summed() for each in own_away)
            assert all(value >= 0 for value in sums)
        else:
            assert [str(point.proto) for point in cumulative["loss.sum"]] == [
                str(point.proto) for point in delta["loss.sum"]
            ]
        if own[-1] not in own_away:
            assert (count, total) == (cumulative[f"{name}.count"][-1].value, cumulative[f"{name}.sum"][-1].value)
        samples = Histogram.of([sample for each in own for sample in each.samples if math.isfinite(sample)])
        parts = [decoded(point) for point in delta.get(f"{name}.histogram", [])]
        parts += [Histogram.of(filter(math.isfinite, each.samples)) for each in own_away]
        assert merged([samples]) == merged(parts)
        for suffix in (suffix for suffix, (kind, _, _) in METRICS.items() if kind == "gauge"):
            gauges = [[str(each.proto) for each in some[f"{name}.{suffix}"]] for some in (cumulative, delta)]
            assert gauges[0] == gauges[1]


@given(windows, st.sampled_from(PREFERENCES), st.integers(1, 12), st.sets(st.integers(0, 29), max_size=4))
def test_points_begin_before_they_end(recorded: list[Given], preference: str, capacity: int, live: set[int]) -> None:
    """Periods of deltas ascend without overlap; a cumulative metric has one start, at its start point or earlier."""
    for points in encoded(recorded, preference, capacity, live).values():
        assert all(one.time_ns < two.time_ns for one, two in pairwise(points))
        if points[0].kind == "gauge":
            continue
        is_start = points[0].temporality == CUMULATIVE and points[0].kind == "sum"
        assert points[0].start_ns < points[0].time_ns + is_start
        assert all(point.start_ns < point.time_ns for point in points[1:])
        if DELTA == points[0].temporality:
            assert all(one.time_ns <= two.start_ns for one, two in pairwise(points))
        else:
            assert 1 == len({point.start_ns for point in points})


@pytest.mark.parametrize("preference", PREFERENCES)
def test_second_pipeline_starts_after_the_last_point_of_the_first(
    *, receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """Even if the window of another Stat of the series has begun before. A backend would refuse the earlier points."""
    monkeypatch.setenv(TEMPORALITY, preference)
    busy, idle = (Stat("x", [COUNT, SUM, monitel.HISTOGRAM], 60.0, monotonic=True) for _ in range(2))
    for stat in (busy, idle):
        pipeline = start(distributions="both")
        for _ in range(3):
            clock.advance(1.0)
            stat.add(2)
            monitel.flush()
        assert pipeline.force_flush(60)
    for metric in ("x.count", "x.sum", "x.histogram"):
        points = [*receiver.start_points(metric), *receiver.points(metric)]
        first = [point for point in points if point.time_ns <= clock.time_ns() - 3 * SECOND_NS]
        second = [point for point in points if point not in first]
        assert len(second) >= 3
        assert max(point.time_ns for point in first) <= min(point.start_ns for point in second)
