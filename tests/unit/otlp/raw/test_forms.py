"""Raw forms: items that are written to disk unencoded become the same requests as items that are encoded at once."""

from __future__ import annotations

import marshal
import math
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource

import monitel
from monitel import Aggregation, Histogram
from monitel_otel import SCHEMA_URL
from monitel_otlp.messages.records import LEVELS, count_records
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.raw.decoders import decoders
from monitel_otlp.raw.forms import RawForm, raw_windows
from monitel_otlp.sdk.metric_requests import WINDOWS_PER_STEP, MetricRequests
from monitel_otlp.sdk.official_encoders import encode_resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.messages.request import FrozenRequest

BLOCK = 256
RESOURCE = Resource({"service.name": "train", "training.rank": 3}, "https://example.test/schema")
ENCODED_RESOURCE = encode_resource(RESOURCE)
EXACT = (type(None), bool, int, float, str, bytes)


def is_exact(value: Any) -> bool:
    """Return True if a value and all values inside it have exact built-in types."""
    if type(value) in (list, tuple):
        return all(map(is_exact, value))
    if type(value) is dict:
        return all(type(key) is str and is_exact(each) for key, each in value.items())
    return type(value) in EXACT


def replayed(form: RawForm) -> list[FrozenRequest]:
    """Marshal and unmarshal a raw form block by block, and return the decoded requests."""
    items = list(form.items)
    assert is_exact(form.header)
    assert is_exact(items)
    decoder = decoders()[form.header[0]](marshal.loads(marshal.dumps(form.header, 4)))
    blocks = [items[begin : begin + BLOCK] for begin in range(0, len(items), BLOCK)]
    requests = []
    for block in blocks:
        found = decoder.decode(marshal.loads(marshal.dumps(block, 4)))
        assert all(request.items <= BLOCK and request.created_ns == form.header[4] for request in found)
        requests += found
    return requests


def exact_bytes(message: Any) -> bytes:
    """Return the serialized message."""
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def weights_of(request: FrozenRequest) -> list[int]:
    """Return the weights of a request, one for each record."""
    records = count_records(request.message(), LEVELS[request.signal])
    weights = list(memoryview(request.weights).cast("I")) if request.weights else [int(bool(request.items))] * records
    assert records == len(weights)
    assert request.items == sum(weights)
    return weights


class Lost(list[tuple[str, str, int]]):
    """A list of reported losses."""

    def __call__(self, *each: Any) -> None:
        """Add a loss."""
        self.append(each)


integers = st.integers(-(2**63), 2**63 - 1)


EPOCH_NS = 1_767_225_600_000_000_000


SERIES: list[tuple[str, dict[str, Any]]] = [("a", {}), ("a", {"k": True}), ("a", {"k": 1}), ("b c", {})]
STEPS = st.sampled_from([0, 1, 999_999, 1_000_000]) | st.integers(-2_000_000, 3_000_000)
numbers = st.integers(-80, 80).map(lambda number: number / 8)
samples = numbers | numbers.map(abs) | st.sampled_from([math.nan, math.inf, 1e300])


@st.composite
def logged_numbers(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[monitel.LoggedNumbers]:
    """Draw the numbers of a few calls, up to 3 ms apart, also in the wrong order."""
    found = []
    for _ in range(draw(st.integers(0, 12))):
        with monitel.testing.ManualClock(EPOCH_NS + draw(st.integers(0, 3_000_000))):
            values = draw(st.dictionaries(st.sampled_from(["a", "b"]), st.floats() | integers, max_size=2))
            found.append(monitel.LoggedNumbers(values, attributes=draw(st.sampled_from([{}, {"split": "val"}]))))
    return found


@st.composite
def closed_windows(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[monitel.Window]:
    """Draw windows of a few series, in any order of their ends."""
    found, now = [], EPOCH_NS
    for _ in range(draw(st.integers(0, 40))):
        now += draw(STEPS)
        name, attributes = draw(st.sampled_from(SERIES))
        asked = tuple(draw(st.lists(st.sampled_from(Aggregation), max_size=8, unique=True)))
        every = draw(st.lists(samples, min_size=1, max_size=4))
        definition = monitel.StatDefinition(name, asked, "s", "", MappingProxyType(attributes), monotonic=False)
        numpy_min: Any = np.float64(min(every))
        found.append(
            monitel.Window(
                *(definition, now - draw(st.integers(0, 2_000_000)), now, len(every), sum(every)),
                *(numpy_min, max(every), every[-1]),
                *(0, None, None),
                float(np.std(every)) if monitel.STDDEV in asked and all(map(math.isfinite, every)) else math.nan,
                Histogram.of(every) if monitel.HISTOGRAM in asked else None,
            )
        )
    return found


def points_of_windows(requests: list[FrozenRequest]) -> dict[str, list[bytes]]:
    """Return the points of windows by metric (with all fields of the metric), all in the scope of monitel."""
    found: dict[str, list[bytes]] = {}
    for request in requests:
        message: Any = request.message()
        (resource,) = message.resource_metrics
        (scope,) = resource.scope_metrics
        del resource.scope_metrics[:]
        assert ENCODED_RESOURCE == resource.SerializeToString()
        assert ("monitel", monitel.__version__, SCHEMA_URL) == (scope.scope.name, scope.scope.version, scope.schema_url)
        for metric in scope.metrics:
            if metric.name == "monitel.queue.size":  # its time is that of the request
                continue
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                if metric.HasField("gauge") and math.isnan(point.as_double):
                    point.as_double = math.nan  # the sign of NaN + NaN differs as the interpreter specializes the code
            points = [exact_bytes(point) for point in data.data_points]
            del data.data_points[:]
            found.setdefault(repr(metric), []).extend(points)
    return found


@pytest.mark.filterwarnings("ignore:overflow encountered")
@given(
    st.tuples(closed_windows(), logged_numbers()),
    st.integers(0, 3),
    st.sampled_from(["cumulative", "delta"]),
    st.sampled_from(["percentiles", "histogram", "both"]),
    st.integers(1, 50),
)
@settings(max_examples=30)
def test_windows_are_the_same_live_and_replayed(
    drawn: tuple[list[monitel.Window], list[monitel.LoggedNumbers]],
    steps: int,
    kind: str,
    distributions: str,
    limit: int,
) -> None:
    """Points are equal even if some windows were sent before or dropped."""
    queue = WindowQueue(limit, 1 << 30, {"training.rank": 3})
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = MetricRequests(WindowMapping(kind, 5, distributions), lambda: 4, RESOURCE, live.append, lost)
    windows, numbers = drawn
    for number, (window, logged) in enumerate(zip_longest(windows, numbers)):
        if window is not None:
            queue.put(window)
        if logged is not None:
            queue.put_numbers(logged)
        if number < steps * 3 and number % 3 == 2:
            exporter.add(queue.queue.take(WINDOWS_PER_STEP))
            exporter.flush()
    live.clear()
    left = queue.queue.take(limit)
    form = raw_windows(left, exporter.mapping, exporter.resource)
    for begin in range(0, len(left), WINDOWS_PER_STEP):
        exporter.add(left[begin : begin + WINDOWS_PER_STEP])
    exporter.flush()
    requests = replayed(form)
    assert points_of_windows(live) == points_of_windows(requests)
    assert ([], len(left)) == (lost, sum(sum(weights_of(request)) for request in live))
    assert len(left) == sum(sum(weights_of(request)) for request in requests)


def test_only_the_window_that_cannot_be_encoded_is_lost() -> None:
    """Its incomplete points are removed, and the totals of other windows stay right."""
    queue = WindowQueue(10, 1 << 30)
    asked = (monitel.COUNT, monitel.SUM, monitel.MEAN)
    definition = monitel.StatDefinition("x", asked, "", "", MappingProxyType({}), monotonic=False)
    for second, count in enumerate([1, 0, 1, 1]):  # the second window has no mean
        end_ns = EPOCH_NS + second * 10**9
        queue.put(monitel.Window(definition, end_ns, end_ns, count, 2.0, 2.0, 2.0, 2.0, 0, None, None))
    entries: Any = queue.queue.take(10)
    odd: Any = object()
    entries[2] = entries[2]._replace(window=replace(entries[2].window, min=odd))
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = MetricRequests(WindowMapping("cumulative", 5, "both"), lambda: 0, RESOURCE, live.append, lost)
    exporter.add(entries)
    exporter.flush()
    (request,) = live
    message: Any = request.message()
    metrics = {each.name: each for each in message.resource_metrics[0].scope_metrics[0].metrics}
    assert [2.0, 2.0] == [point.as_double for point in metrics["x.mean"].gauge.data_points]
    assert [0, 1, 3] == [point.as_int for point in metrics["x.count"].sum.data_points]
    assert (2, 2) == (request.items, sum(weights_of(request)))
    assert [("metrics", "encoding", 2)] == lost
