"""Raw items that an earlier version of monitel-otlp has written."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.trace import INVALID_SPAN
from tests.support.inbox import points_of
from tests.unit.otlp.raw.round_trip import ENCODED_RESOURCE, RESOURCE, Lost, records_of, replayed

import monitel
from monitel import COUNT, HISTOGRAM, SUM, Histogram
from monitel_otel import Period
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.raw.decoders import decoders
from monitel_otlp.raw.forms import RawForm, raw_ranges, raw_windows
from monitel_otlp.sdk.metric_requests import MetricRequests
from monitel_otlp.traces.mapping import RangeMapping
from monitel_otlp.traces.span_queue import Ended, Identified

if TYPE_CHECKING:
    from tests.support.inbox import Point

    from monitel_otlp.messages.request import FrozenRequest

SECOND_NS = 10**9
START_NS = 1_767_225_600 * SECOND_NS


def points_of_windows(requests: list[FrozenRequest]) -> list[Point]:
    """Return the points of windows."""
    points = [point for request in requests for point in points_of(request.message())]
    return [point for point in points if not point.metric.startswith("monitel.")]


def put(queue: WindowQueue, name: str, second: int) -> None:
    """Put a window of one sample, of 60 s from this second on."""
    asked = (COUNT, SUM, HISTOGRAM)
    definition = monitel.StatDefinition(name, asked, "", "", MappingProxyType({}), monotonic=False)
    start_ns = START_NS + second * SECOND_NS
    end_ns, histogram = start_ns + 60 * SECOND_NS, Histogram.of([2.0])
    queue.put(monitel.Window(definition, start_ns, end_ns, 1, 2.0, 2.0, 2.0, 2.0, 0, None, None, None, histogram))


def of_version_1(form: RawForm) -> None:
    """Change the form to version 1: without schemas, starts and errors, and with a flag for negative samples."""
    kind, _, encoded, (scope, version, _), created_ns, state = form.header
    resource = ResourceMetrics.FromString(encoded).resource.SerializeToString()
    if kind == "windows":
        mapping, waiting, series = state
        state = mapping, waiting, [(*each[:6], False, *each[6:-1]) for each in series]
    else:
        form.items = [(*plain[:-2], plain[-1]) for plain in form.items]
    form.header = kind, 1, resource, (scope, version), created_ns, state


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_windows_of_version_1_have_the_same_points(temporality: str) -> None:
    """Totals, start times and start points continue where the requests before them ended."""
    requests: list[FrozenRequest] = []
    mapping = WindowMapping(temporality, START_NS + 10 * SECOND_NS, "both")
    exporter = MetricRequests(mapping, lambda: 0, RESOURCE, requests.append, Lost())
    queue = WindowQueue(3, 1 << 30)
    put(queue, "sent before", 0)
    exporter.add(queue.queue.take(1))
    exporter.flush()
    for name, second in (("sent before", 60), ("new", 60), ("new", 120), ("sent before", 120)):  # the first is dropped
        put(queue, name, second)
    form = raw_windows(queue.queue.take(3), mapping, exporter.resource)
    form.items = list(form.items)  # taken twice
    expected = points_of_windows(replayed(form))
    of_version_1(form)
    found = points_of_windows(replayed(form))
    assert list(map(str, expected)) == list(map(str, found))
    zeros = {"cumulative": 2, "delta": 1}[temporality]  # start points of "new": of count and sum, or of the sum only
    assert 3 * len(["count", "sum", "p50", "p90", "p95", "p99", "histogram"]) + zeros == len(found)
    points = [point for point in points_of_windows(requests) + found if point.metric == "sent_before.sum"]
    assert ([0.0, 2.0, 6.0], {START_NS}) == ([point.value for point in points], {point.start_ns for point in points})


def test_ranges_of_version_1_are_the_same_spans() -> None:
    """The flag for an exception is missing, so no span has an error."""
    ids = Identified(Period(1), INVALID_SPAN, True, b"t" * 16, b"s" * 8)
    ended = Ended(ids, "forward", START_NS, START_NS + SECOND_NS, None, {"layer": 3})
    items = [ended, (ended, {"monitel.folded.count": 7})]
    form = raw_ranges(items, RangeMapping(), ENCODED_RESOURCE)
    form.items = list(form.items)  # taken twice
    expected = [(span, weight) for *_, span, weight in records_of(replayed(form))]
    of_version_1(form)
    assert [1, 0] == [weight for _, weight in expected]
    assert expected == [(span, weight) for *_, span, weight in records_of(replayed(form))]


def test_later_version_is_refused() -> None:
    """The message says what to do."""
    form = raw_windows([], WindowMapping("cumulative", START_NS), b"")
    header = (form.header[0], 3, *form.header[2:])
    with pytest.raises(ValueError, match=r"expected version 2 of raw items, got 3: use a newer monitel-otlp"):
        decoders()["windows"](header)
