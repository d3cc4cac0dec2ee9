"""Start points: cumulative sums of Stats begin with a zero, once per series, even across drops and raw forms."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.inbox import TEMPORALITY
from tests.support.pipelines import busy_encoder
from tests.unit.otlp.raw.round_trip import ENCODED_RESOURCE, RESOURCE, Lost, replayed, weights_of

import monitel
from monitel import COUNT, MEAN, SUM, Stat
from monitel_otlp.engine import engine
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.start_points import start_point_ns
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.raw.forms import raw_windows
from monitel_otlp.sdk.metric_requests import MetricRequests

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp.messages.request import FrozenRequest

MILLISECOND_NS = 1_000_000
SECOND_NS = 10**9
HALF_HOUR_NS = 1_800 * SECOND_NS
START_NS = 1_767_225_600 * SECOND_NS  # of the totals

# Series, metric: each point's time and value.
Points = dict[tuple[str, str], list[tuple[int, float]]]


@pytest.fixture
def future() -> Any:
    """A clock that begins two hours from now: the windows begin after the start of the totals."""
    with monitel.testing.ManualClock(time.time_ns() + 4 * HALF_HOUR_NS) as clock:
        yield clock


def window(
    start_s: float,
    end_s: float,
    count: int = 1,
    *,
    asked: tuple[monitel.Aggregation, ...] = (COUNT, SUM),
    **attributes: Any,
) -> monitel.Window:
    """Return a window of ones, with its times in seconds after the start of the totals."""
    definition = monitel.StatDefinition("x", asked, "", "", attributes, monotonic=False)
    start_ns, end_ns = (START_NS + round(second * SECOND_NS) for second in (start_s, end_s))
    return monitel.Window(definition, start_ns, end_ns, count, float(count), 1.0, 1.0, 1.0, 0, None, None)


def metrics_of_windows(request: FrozenRequest) -> list[Any]:
    """Return the metrics of windows."""
    message: Any = request.message()
    metrics = [metric for scope in message.resource_metrics[0].scope_metrics for metric in scope.metrics]
    return [metric for metric in metrics if not metric.name.startswith("monitel.")]


def points_of(*requests: FrozenRequest) -> Points:
    """Return the points of windows, in the order of the requests; the times are relative to the start of the totals."""
    found: Points = defaultdict(list)
    for request in requests:
        for metric in metrics_of_windows(request):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                value = getattr(point, point.WhichOneof("value"))
                series = ",".join(f"{each.key}={each.value.int_value}" for each in point.attributes)
                found[series, metric.name].append((point.time_unix_nano - START_NS, value))
    return dict(found)


class Encoded:
    """Windows that were encoded at once, with their requests."""

    def __init__(self) -> None:
        self.requests: list[FrozenRequest] = []
        self.lost = Lost()
        self.queue = WindowQueue(1000)
        self.mapping = WindowMapping("cumulative", START_NS, "both")
        self._requests = MetricRequests(self.mapping, lambda: 0, RESOURCE, self.requests.append, self.lost)

    def write(self, *windows: monitel.Window) -> Points:
        """Encode windows into a request, and return its points."""
        for each in windows:
            self.queue.put(each)
        return self.flush()

    def flush(self) -> Points:
        """Encode the queue into a request, and return its points."""
        self._requests.add(self.queue.queue.take(1000))
        before = len(self.requests)
        self._requests.flush()
        return points_of(*self.requests[before:])


@pytest.mark.parametrize(
    ("start_ns", "begin_ns", "first_ns", "expected"),
    [
        (0, 100, 200, 100),
        (150, 100, 200, 150),
        (0, 200, 200, 199),
        (0, 300, 200, 199),
        (199, 100, 200, 199),
        (199, 300, 200, 199),
    ],
)
def test_time_of_a_start_point(start_ns: int, begin_ns: int, first_ns: int, expected: int) -> None:
    """In milliseconds: not before the start, and at least one before the first point."""
    found = start_point_ns(*(each * MILLISECOND_NS for each in (start_ns, begin_ns, first_ns)))
    assert expected * MILLISECOND_NS == found


def test_start_point_is_at_most_half_an_hour_old() -> None:
    """Prometheus would refuse a request with a sample that is an hour older than its latest one."""
    first_ns = START_NS + 5 * HALF_HOUR_NS
    assert first_ns - HALF_HOUR_NS == start_point_ns(START_NS, START_NS, first_ns)


def test_sums_begin_with_zero_at_the_start_of_the_first_window(
    receiver: Receiver, start: Start, future: monitel.testing.ManualClock
) -> None:
    """In the same request, once per series, with the start time of all points. Gauges have none."""
    pipeline = start()
    began = future.time_ns()
    stat = Stat("x", [COUNT, SUM, MEAN], 60.0)
    for samples in ([1.5, 2.5], [4.0]):
        for sample in samples:
            stat.add(sample)
        future.advance(60)
        assert pipeline.force_flush(60)
    for metric, values in (("x.count", [2, 3]), ("x.sum", [4.0, 8.0])):
        (zero,) = receiver.start_points(metric)
        points = receiver.points(metric)
        assert (began, 0, values) == (zero.time_ns, zero.value, [point.value for point in points])
        assert {zero.start_ns} == {point.start_ns for point in points}
        assert zero.proto.WhichOneof("value") == points[0].proto.WhichOneof("value")
        requests = [each for each in receiver.of("metrics") if metric.encode() in each.body]
        assert 2 == len(requests)
    assert ([2.0, 4.0], []) == (receiver.values("x.mean"), receiver.start_points("x.mean"))
    assert 2 == pipeline.account()["metrics"].delivered


def test_only_cumulative_sums_have_start_points_with_delta_temporality(
    receiver: Receiver, start: Start, future: monitel.testing.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta begins at zero by definition; a sum that is not monotonic stays cumulative."""
    monkeypatch.setenv(TEMPORALITY, "delta")
    pipeline = start()
    began = future.time_ns()
    stat = Stat("x", [COUNT, SUM], 60.0)
    stat.add(-1.0)
    future.advance(60)
    assert pipeline.force_flush(60)
    ends = [(point.metric, point.time_ns - began, point.value) for point in receiver.all_points()]
    assert [("x.count", 60 * SECOND_NS, 1), ("x.sum", 0, 0.0), ("x.sum", 60 * SECOND_NS, -1.0)] == ends[:3]


def test_dropped_first_window_still_begins_the_series(
    receiver: Receiver, start: Start, future: monitel.testing.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its samples are in the totals, so that the zero is at its start."""
    monkeypatch.setattr(engine, "LIMIT", 2)
    pipeline = start()
    began = future.time_ns()
    stat = Stat("x", [COUNT], 60.0)
    with busy_encoder(pipeline):
        for _ in range(5):
            stat.add(1)
            future.advance(30)
            stat.flush()
    pipeline.force_flush(10)
    assert [began] == [point.time_ns for point in receiver.start_points("x.count")]
    assert [4, 5] == receiver.values("x.count")
    assert {"queue_full": 3} == dict(pipeline.account()["metrics"].dropped)


def test_earlier_window_that_is_queued_later_begins_the_series() -> None:
    """Two threads may queue windows in the wrong order."""
    found = Encoded().write(window(60, 120), window(0, 60))
    assert [(0, 0), (60 * SECOND_NS, 1), (120 * SECOND_NS, 2)] == found["", "x.count"]


def test_windows_before_the_start_of_the_totals_begin_with_zero() -> None:
    """As the first window of a forked child. The start stays, even if a later window has an earlier one."""
    encoded = Encoded()
    found = [encoded.write(each)["", "x.count"] for each in (window(-60, -30), window(-90, -20), window(0, 60))]
    assert [[(-60 * SECOND_NS, 0), (-30 * SECOND_NS, 1)], [(-20 * SECOND_NS, 2)], [(60 * SECOND_NS, 3)]] == found
    assert {START_NS - 60 * SECOND_NS} == starts_of(encoded.requests)


def starts_of(requests: list[FrozenRequest]) -> set[int]:
    """Return the start times of all points of sums of windows."""
    metrics = [metric for each in requests for metric in metrics_of_windows(each)]
    return {point.start_time_unix_nano for metric in metrics for point in metric.sum.data_points}


@pytest.mark.parametrize(
    ("begin_s", "end_s"),
    [(0, 0.0009), (0, 0), (7200, -10), (-9, -10)],
    ids=["short", "without length", "clock set back", "clock set back before the pipeline"],
)
def test_series_starts_a_millisecond_before_its_first_point_at_the_latest(begin_s: float, end_s: float) -> None:
    """The start point is there, and later windows have the same start."""
    encoded = Encoded()
    first = encoded.write(window(begin_s, end_s))["", "x.count"]
    later = encoded.write(window(0, 60))["", "x.count"]
    end_ns = round(end_s * SECOND_NS)
    assert ([(end_ns - MILLISECOND_NS, 0), (end_ns, 1)], [(60 * SECOND_NS, 2)]) == (first, later)
    assert {START_NS + end_ns - MILLISECOND_NS} == starts_of(encoded.requests)


def test_start_is_constant_while_an_earlier_window_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the application puts the window while the encoder writes the first points of the series."""
    encoded = Encoded()
    write = WindowMapping.write_value

    def put_and_write(*arguments: Any) -> None:
        encoded.queue.put(window(-30, 60))
        write(*arguments)

    monkeypatch.setattr(WindowMapping, "write_value", staticmethod(put_and_write))
    encoded.write(window(-20, 50, asked=(COUNT, MEAN, SUM)))
    found = encoded.flush()
    assert [(60 * SECOND_NS, 2)] == found["", "x.count"]
    assert {START_NS - 20 * SECOND_NS} == starts_of(encoded.requests)


def test_each_series_and_each_sum_begins_apart() -> None:
    """A sum that a later Stat requests begins with its first point, at the start of the series."""
    encoded = Encoded()
    encoded.write(window(0, 60, asked=(COUNT,)), window(30, 60, asked=(COUNT,), layer=1))
    found = encoded.write(window(60, 120, 2))
    assert {("", "x.count"): [(120 * SECOND_NS, 3)], ("", "x.sum"): [(0, 0.0), (120 * SECOND_NS, 3.0)]} == found
    assert [(30 * SECOND_NS, 0), (60 * SECOND_NS, 1)] == points_of(*encoded.requests)["layer=1", "x.count"]


def test_start_points_are_not_items() -> None:
    """A window is complete with its last point; the weights of start points are zero."""
    encoded = Encoded()
    encoded.write(window(0, 60), window(60, 120), window(0, 60, layer=1))
    (request,) = encoded.requests
    # x.count: zero, 1, 2, zero, 1; x.sum: the same; the queue size
    assert ([0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0], 3) == (weights_of(request), request.items)


def test_start_point_is_removed_with_a_broken_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next window of the series begins it."""
    encoded = Encoded()
    write = WindowMapping.write_value

    def fail_once(*arguments: Any) -> None:
        monkeypatch.setattr(WindowMapping, "write_value", staticmethod(write))
        raise RuntimeError("broken")

    monkeypatch.setattr(WindowMapping, "write_value", staticmethod(fail_once))
    asked = (COUNT, SUM, MEAN)
    found = encoded.write(window(0, 60, asked=asked), window(60, 120, asked=asked))
    assert [(0, 0), (120 * SECOND_NS, 2)] == found["", "x.count"]
    assert [("metrics", "encoding", 1)] == encoded.lost
    assert [1] == [request.items for request in encoded.requests]


def test_raw_windows_begin_at_the_start_of_the_first_window() -> None:
    """The window itself was dropped: only the state of the series has its start."""
    encoded = Encoded()
    encoded.queue = WindowQueue(1)
    for second in (20, 40, 60):
        encoded.queue.put(window(second, second + 20))
    entries: Any = encoded.queue.queue.take(10)
    (request,) = replayed(raw_windows(entries, encoded.mapping, ENCODED_RESOURCE))
    assert [(20 * SECOND_NS, 0), (80 * SECOND_NS, 3)] == points_of(request)["", "x.count"]
    assert 1 == request.items


windows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 120), st.integers(1, 4)), min_size=1, max_size=30
)


@given(recorded=windows, live=st.integers(0, 30), capacity=st.integers(1, 40))
def test_increase_is_the_whole_count(recorded: list[tuple[int, int, int, int]], live: int, capacity: int) -> None:
    """Last minus first sample of each series, whichever windows are dropped, encoded at once, or written raw."""
    encoded = Encoded()
    encoded.queue = WindowQueue(capacity)
    expected: dict[str, int] = defaultdict(int)
    for number, (layer, begin, length, count) in enumerate(recorded):
        encoded.queue.put(window(begin + 1, begin + 1 + length, count, layer=layer))
        expected[f"layer={layer}"] += count
        if number == live:
            encoded.flush()
    entries: Any = encoded.queue.queue.take(1000)
    requests = [*encoded.requests, *replayed(raw_windows(entries, encoded.mapping, ENCODED_RESOURCE))]
    found = points_of(*requests)
    weights = [sum(weights_of(request)) for request in requests]
    assert [request.items for request in requests] == weights
    for (series, metric), points in found.items():
        times = [at for at, _ in points]
        values = [value for _, value in points]
        assert all(two - one >= MILLISECOND_NS for one, two in pairwise(times))
        assert sorted(values) == values
        assert (0, 1) == (values[0], values.count(0)), (series, metric)
        assert values[-1] - values[0] <= expected[series]
    for series in {f"layer={layer}" for layer, *_ in recorded[-capacity:]}:  # their last window was not dropped
        values = [value for _, value in found[series, "x.count"]]
        assert expected[series] == values[-1] - values[0]
