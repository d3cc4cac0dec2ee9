"""Requests of metrics that the SDK's readers collect, together with windows."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from tests.support.inbox import CUMULATIVE, points_of

import monitel
from monitel import COUNT, HISTOGRAM, MEAN, SUM
from monitel_otel import SCOPE
from monitel_otlp.accounting import Account
from monitel_otlp.messages.records import LEVELS, count_records
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.sdk.metric_requests import MetricRequests
from monitel_otlp.sdk.official_encoders import encode_resource
from monitel_otlp.sdk.preferences import HISTOGRAMS, TEMPORALITY, reader_preferences
from monitel_otlp.sdk.self_metrics import SelfMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.messages.request import FrozenRequest

RESOURCE = Resource({"service.name": "train"}, "https://example.test/schema")
DELTA = 1
EPOCH_NS = 1_767_225_600_000_000_000
MILLISECOND_NS = 1_000_000


def metrics_of(instruments: int, points: int, scopes: tuple[str, ...] = ("app", "library")) -> MetricsData:
    """Collect this number of instruments of each kind, with this number of points each."""
    reader = InMemoryMetricReader()
    exponential = View(instrument_name="exponential*", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False, views=[exponential])
    for scope in scopes:
        meter = provider.get_meter(scope, "1", "https://example.test/scope")
        for number in range(instruments):
            for point in range(points):
                attributes = {"point": point}
                meter.create_counter(f"counter{number}", "s", "time").add(number + 0.5, attributes)
                meter.create_gauge(f"gauge{number}").set(number, attributes)
                meter.create_histogram(f"histogram{number}").record(number, attributes)
                meter.create_histogram(f"exponential{number}").record(number, attributes)
    data = reader.get_metrics_data()
    assert data is not None
    provider.shutdown()
    return data


class Exported:
    """A builder of metric requests, with the requests and losses that it has reported."""

    def __init__(self, waiting: int = 0) -> None:
        self.requests: list[FrozenRequest] = []
        self.lost: list[tuple[str, str, int]] = []
        mapping = WindowMapping("cumulative", EPOCH_NS, "both")
        self.exporter = MetricRequests(
            mapping, lambda: waiting, Resource({}), self.requests.append, lambda *each: self.lost.append(each)
        )
        self.queue = WindowQueue(10_000, 1 << 30)

    def add(self, windows: Iterable[monitel.Window]) -> None:
        """Encode windows in steps of eight."""
        for window in windows:
            self.queue.put(window)
        while entries := self.queue.queue.take(8):
            self.exporter.add(entries)


def window(
    second: float, *, asked: tuple[monitel.Aggregation, ...] = (COUNT, SUM, MEAN), name: str = "x", **attributes: Any
) -> monitel.Window:
    """Return a window of one sample that ends at this second."""
    definition = monitel.StatDefinition(name, asked, "", "", MappingProxyType(attributes), monotonic=False)
    end_ns = EPOCH_NS + int(second * 1e9)
    histogram = monitel.Histogram.of([1.0]) if HISTOGRAM in asked else None
    return monitel.Window(definition, end_ns, end_ns, 1, 1.0, 1.0, 1.0, 1.0, 0, None, None, None, histogram)


def weights(request: FrozenRequest) -> list[int]:
    """Return the number of windows that are counted with each point."""
    found = list(memoryview(request.weights).cast("I"))
    assert count_records(request.message(), LEVELS["metrics"]) == len(found)
    assert request.items == sum(found)
    return found


@pytest.mark.parametrize(("instruments", "points"), [(1, 1), (3, 20), (40, 1), (1, 33)])
def test_collected_metrics_are_encoded_as_by_the_official_exporter(instruments: int, points: int) -> None:
    """Encoding in small steps returns the same message, to which the scope of monitel is added."""
    exported = Exported()
    data = metrics_of(instruments, points)
    steps = list(exported.exporter.collected(data))
    exported.exporter.flush()
    assert len(steps) >= instruments * points * 8 // 64
    (request,) = exported.requests
    message: Any = request.message()
    own = message.resource_metrics[0].scope_metrics.pop(0)
    assert encode_metrics(data) == message
    assert ("monitel", ["monitel.queue.size"]) == (own.scope.name, [metric.name for metric in own.metrics])
    assert (0, b"", False) == (request.items, request.weights, request.idle)


@pytest.mark.parametrize(("temporality", "start", "time"), [(CUMULATIVE, 5, 6), (DELTA, -1, 0)])
def test_series_that_begins_during_a_collection_starts_before_its_time(temporality: int, start: int, time: int) -> None:
    """A cumulative series keeps its start; a delta ends at the collection, where the next one starts."""
    data, exported = metrics_of(1, 2), Exported()
    at_ns = {}
    for scope in data.resource_metrics[0].scope_metrics:
        for metric in scope.metrics:
            every: Any = metric.data
            if hasattr(every, "aggregation_temporality"):
                object.__setattr__(every, "aggregation_temporality", AggregationTemporality(temporality))
                at_ns[scope.scope.name, metric.name] = at = every.data_points[0].start_time_unix_nano - 5
                every.data_points[:] = [
                    replace(point, start_time_unix_nano=at + 5, time_unix_nano=at) for point in every.data_points
                ]
    assert 6 == len(at_ns)
    exported.exporter.export(data)
    exported.exporter.flush()
    found = [each for request in exported.requests for each in points_of(request.message())]
    found = [each for each in found if each.kind != "gauge" and each.scope != "monitel"]
    assert 12 == len(found)
    for each in found:
        at = at_ns[each.scope, each.metric]
        assert (start, time) == (each.start_ns - at, each.time_ns - at)


@pytest.mark.parametrize("instrument", ["", "loss", "monitel.exporter"])
def test_request_with_only_self_metrics_is_idle(instrument: str) -> None:
    """An idle request is not written to disk. A request with any instrument of the application is not idle."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
    zero = lambda: 0  # noqa: E731
    SelfMetrics(lambda: {"logs": Account(recorded=3, delivered=3)}).register(
        provider.get_meter(*SCOPE),
        spool_bytes=zero,
        nonfinite=zero,
        discarded=zero,
        coalesced=zero,
        left_out=zero,
        without_box=zero,
    )
    if instrument:
        provider.get_meter("app").create_counter(instrument).add(1)
    data = reader.get_metrics_data()
    assert data is not None
    exported = Exported()
    exported.exporter.export(data)
    exported.exporter.flush()
    assert [not instrument] == [request.idle for request in exported.requests]
    names = {point.metric for request in exported.requests for point in points_of(request.message())}
    assert {"monitel.exporter.item.exported", "monitel.spool.size", "monitel.queue.size"} <= names
    provider.shutdown()


def test_only_the_metric_that_cannot_be_encoded_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A counter that needs more than 64 bits is left out, and one line is logged."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], RESOURCE, shutdown_on_exit=False).get_meter("app")
    for number in range(5):
        meter.create_counter(f"counter{number}").add(2**70 if number % 2 else number)
    exported = Exported()
    data = reader.get_metrics_data()
    assert data is not None
    exported.exporter.export(data)
    exported.exporter.flush()
    message: Any = exported.requests[0].message()
    names = [metric.name for metric in message.resource_metrics[0].scope_metrics[1].metrics]
    assert ["counter0", "counter2", "counter4"] == names
    assert ["metric 'counter1' cannot be encoded and is left out (further ones are not logged)"] == caplog.messages


def test_windows_are_in_the_request_of_the_reader() -> None:
    """The request has the reader's resource and one scope of monitel; each window is counted with its last point."""
    exported = Exported()
    exported.exporter.export(metrics_of(1, 2))
    exported.add([window(1), window(2)])
    exported.exporter.flush()
    (request,) = exported.requests
    message: Any = request.message()
    (resource,) = message.resource_metrics
    assert RESOURCE.schema_url == resource.schema_url
    assert ["monitel", "app", "library"] == [scope.scope.name for scope in resource.scope_metrics]
    count, total, mean = [0, 0, 0], [0, 0, 0], [1, 1]  # count and sum begin with a start point
    assert [*count, *total, *mean, *[0] * 17] == weights(request)
    assert encode_resource(RESOURCE) == exported.exporter.resource


def test_request_with_only_windows_has_the_size_of_the_queue() -> None:
    """A request has about 500 windows, the resource and a current sample of the queue's size."""
    exported = Exported(waiting=7)
    exported.add(window(number) for number in range(1100))
    exported.exporter.flush()
    assert [504, 504, 92] == [request.items for request in exported.requests]
    for request in exported.requests:
        message: Any = request.message()
        (resource,) = message.resource_metrics
        (scope,) = resource.scope_metrics
        (point,) = scope.metrics[-1].sum.data_points
        assert "monitel.queue.size" == scope.metrics[-1].name
        assert (7, EPOCH_NS, request.created_ns) == (point.as_int, point.start_time_unix_nano, point.time_unix_nano)
        assert 0 == weights(request)[-1]


def test_size_of_requests_is_limited() -> None:
    """A request has about 1 MiB."""
    exported = Exported()
    exported.add(window(number, text="x" * 10_000) for number in range(200))
    exported.exporter.flush()
    assert 200 == sum(request.items for request in exported.requests)
    assert all(len(request.body) < 2 * 2**20 for request in exported.requests)
    assert len(exported.requests) >= 5


def test_merged_windows_are_all_counted() -> None:
    """Windows less than a millisecond apart are one point, with which all of them are counted."""
    exported = Exported()
    exported.add([window(1), window(1.0001), window(1.0002), window(2)])
    exported.exporter.flush()
    (request,) = exported.requests
    count, total, mean = [0, 0, 0], [0, 0, 0], [3, 1]  # count and sum begin with a start point
    assert [*count, *total, *mean, 0] == weights(request)


@pytest.mark.parametrize("at_once", [1, 3, 4, 8, 20])
def test_merging_does_not_depend_on_the_size_of_steps(at_once: int) -> None:
    """Windows become the same points with any size of the encoder's steps."""
    exported = Exported()
    for number in range(20):
        exported.queue.put(window(1 + number / 10_000))
    while entries := exported.queue.queue.take(at_once):
        exported.exporter.add(entries)
    exported.exporter.flush()
    (request,) = exported.requests
    assert [8, 8, 4] == [weight for weight in weights(request) if weight]


def test_last_point_of_a_window_is_its_last_point_in_the_message() -> None:
    """Metrics are in the order of their first point, which may differ from the order of a window's aggregations."""
    exported = Exported()
    exported.add([window(1, asked=(SUM,)), window(2, asked=(COUNT, SUM)), window(3, asked=(COUNT,), name="y")])
    exported.exporter.flush()
    (request,) = exported.requests
    message: Any = request.message()
    *names, _queue_size = [metric.name for metric in message.resource_metrics[0].scope_metrics[0].metrics]
    sums, counts, other = [0, 1, 0], [0, 1], [0, 1]  # each begins with a start point
    assert (["x.sum", "x.count", "y.count"], [*sums, *counts, *other, 0]) == (names, weights(request))


def test_window_without_points_is_counted_with_the_next_one() -> None:
    """A window without aggregations has no point, and is counted as delivered with its request."""
    exported = Exported()
    exported.add([window(1, asked=()), window(2), window(3, asked=())])
    exported.exporter.flush()
    count, total, mean = [0, 0], [0, 0], [2]  # count and sum begin with a start point
    assert [[*count, *total, *mean, 1]] == [weights(request) for request in exported.requests]
    exported.requests.clear()
    exported.add([window(4, asked=())])
    exported.exporter.flush()
    assert [[1]] == [weights(request) for request in exported.requests]


def test_points_of_a_broken_window_are_removed() -> None:
    """Points that were written before the failure are removed."""
    points = Points()
    mapping = WindowMapping("cumulative", EPOCH_NS, "both")
    queue = WindowQueue(10, 1 << 30)
    for second in (1, 2):
        queue.put(window(second))
    entries: Any = queue.queue.take(2)
    good, bad = entries
    bad = bad._replace(total_sum=3.0, window=replace(window(2, asked=(COUNT, MEAN)), count=0))  # it has no mean
    assert 1 == mapping.write([good, bad], points)
    assert 1 == points.items
    assert 5 == count_records(points.request, LEVELS["metrics"])  # two of them are start points


TEMPORALITIES = [None, "", "cumulative", "DELTA", " delta ", "LowMemory", "sometimes"]
AGGREGATIONS = [None, "explicit_bucket_histogram", "base2_exponential_bucket_histogram", "BASE2", ""]


@pytest.mark.parametrize("temporality", TEMPORALITIES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_reader_collects_as_for_the_official_exporter(
    monkeypatch: pytest.MonkeyPatch, *, temporality: str | None, aggregation: str | None
) -> None:
    """The standard variables for temporality and histograms have the same effect as in the official exporter."""
    for variable, value in ((TEMPORALITY, temporality), (HISTOGRAMS, aggregation)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    official: Any = OTLPMetricExporter(endpoint="http://localhost")
    ours = reader_preferences()
    assert official._preferred_temporality == ours["preferred_temporality"]
    aggregations = official._preferred_aggregation, ours["preferred_aggregation"]
    assert [[Histogram], [Histogram]] == [list(each) for each in aggregations]
    assert 1 == len({type(each[Histogram]) for each in aggregations})


def test_unknown_preference_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the variable, the allowed values, the given value and the value in use."""
    monkeypatch.setenv(TEMPORALITY, "sometimes")
    reader_preferences()
    assert [
        (
            logging.WARNING,
            f"{TEMPORALITY}: expected one of cumulative, delta, lowmemory, got 'sometimes'; using cumulative",
        )
    ] == [(record.levelno, record.getMessage()) for record in caplog.records]
