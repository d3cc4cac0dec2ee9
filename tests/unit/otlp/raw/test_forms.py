"""Raw forms: items that are written to disk unencoded become the same requests as items that are encoded at once."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timezone
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    SpanContext,
)
from tests.unit.otlp.raw.round_trip import (
    ENCODED_RESOURCE,
    RESOURCE,
    Lost,
    Word,
    exact_bytes,
    integers,
    numpy_scalars,
    records_of,
    replayed,
    scalars,
    text,
    weights_of,
)

import monitel
from monitel import Aggregation, Histogram
from monitel.profiler.ranges import Range, Track
from monitel_otel import SCHEMA_URL, Period
from monitel_otlp.logs.mapping import LoggedEvent
from monitel_otlp.logs.requests import EventRequests
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.raw.forms import raw_events, raw_ranges, raw_windows
from monitel_otlp.sdk.metric_requests import WINDOWS_PER_STEP, MetricRequests
from monitel_otlp.traces.requests import RangeRequests
from monitel_otlp.traces.span_queue import Ended, Identified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.messages.request import FrozenRequest

EPOCH_NS = 1_767_225_600_000_000_000


plain_span_contexts = st.builds(SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())


configurations = st.dictionaries(
    text,
    st.recursive(
        st.none() | scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    ),
    max_size=3,
)


@st.composite
def logged_events(draw: Callable[[st.SearchStrategy[Any]], Any]) -> LoggedEvent:
    """Draw a queued event."""
    moment = draw(st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(timezone.utc)))  # noqa: DTZ001  bound
    kind = draw(st.sampled_from([monitel.Event, monitel.LoggedNumbers, monitel.RunConfig]))
    if kind is monitel.RunConfig:
        event: monitel.Event = monitel.RunConfig(draw(configurations), moment)
    elif kind is monitel.LoggedNumbers:
        attributes = draw(st.dictionaries(text.filter(bool), st.booleans() | integers | text, max_size=2))
        event = monitel.LoggedNumbers({}, attributes=attributes)
    else:
        event = monitel.Event(draw(text), moment, {})
    event.data.update(draw(st.dictionaries(text, scalars | numpy_scalars, max_size=4)))
    return LoggedEvent(event, draw(st.none() | st.integers(0, 9)), Context(), None, draw(st.integers(0, 2**63)))


@given(st.lists(logged_events(), max_size=6), st.integers(1, 200))
@settings(max_examples=40)
def test_events_are_the_same_live_and_replayed(events: list[LoggedEvent], times: int) -> None:
    """Records have the same resource, scope and weights, across several blocks."""
    live: list[FrozenRequest] = []
    lost = Lost()
    builder = EventRequests(live.append, lost, ENCODED_RESOURCE)
    for event in events * times:
        builder.add(event)
    builder.flush()
    form = raw_events(events * times, builder.mapping, ENCODED_RESOURCE)
    assert records_of(live) == records_of(replayed(form))
    assert ([], 0) == (lost, form.lost)


class _Range:
    """A range with the attributes that its span needs."""

    def __init__(self, step: int | None, track: Track, end_ns: int, error_type: str | None) -> None:
        self.step, self.track, self.end_ns, self.error_type = step, track, end_ns, error_type


TRACKS = [Track(7, "MainThread"), Track(8, Word("worker-\u00e9")), Track(9, "bad\udc80")]
trace_ids = st.binary(min_size=16, max_size=16)
span_ids = st.binary(min_size=8, max_size=8)
argument_values = scalars | numpy_scalars | st.lists(st.integers(0, 9)) | st.just(object())
arguments = st.none() | text | st.dictionaries(text, argument_values, max_size=4)


@st.composite
def ended_ranges(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Draw an ended range, or a synthetic span."""
    period = Period(1)
    ids = Identified(
        *(period, INVALID_SPAN, True, draw(trace_ids), draw(span_ids)),
        *(draw(span_ids | st.just(b"")), draw(st.booleans())),
    )
    start_ns = draw(st.integers(0, 2**62))
    end_ns = start_ns + draw(st.integers(0, 10**9))
    name = draw(text | st.just(Word("word")) | st.just("bad\udc80"))
    if draw(st.booleans()):
        attributes = {"training.step": draw(st.integers(0, 9)), "monitel.folded.names": draw(st.lists(text))}
        return Ended(ids, name, start_ns, end_ns, None, None), attributes
    unfinished = draw(st.sampled_from([0, 1]))
    step, track = draw(st.none() | st.integers(0, 9)), draw(st.sampled_from(TRACKS))
    found: Any = _Range(step, track, end_ns - unfinished, draw(st.sampled_from([None, "KeyError", "bad\udc80"])))
    return Ended(ids, name, start_ns, end_ns, found, draw(arguments))


@given(st.lists(ended_ranges(), max_size=6), st.integers(1, 200))
@settings(max_examples=40)
def test_ranges_are_the_same_live_and_replayed(items: list[Any], times: int) -> None:
    """Spans have the same resource, scope and weights; synthetic spans are not items."""
    live: list[FrozenRequest] = []
    lost = Lost()
    builder = RangeRequests(live.append, lost, ENCODED_RESOURCE)
    for item in items * times:
        builder.add(item) if isinstance(item, Ended) else builder.add(*item)
    builder.flush()
    form = raw_ranges(items * times, builder.mapping, ENCODED_RESOURCE)
    requests = replayed(form)
    assert records_of(live) == records_of(requests)
    assert ([], 0) == (lost, form.lost)
    synthetic = sum(not isinstance(item, Ended) for item in items) * times
    assert synthetic == sum(request.synthetic for request in live) == sum(request.synthetic for request in requests)
    assert len(items) * times - synthetic == sum(request.items for request in requests)


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
@settings(max_examples=80, deadline=None)
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


def test_replayed_windows_have_the_queue_size_of_their_time() -> None:
    """Prometheus orders samples by resource, so each request has a sample with the time of the header."""
    queue = WindowQueue(1000, 1 << 30)
    definition = monitel.StatDefinition("x", (monitel.COUNT,), "", "", MappingProxyType({}), monotonic=False)
    for number in range(300):
        end_ns = EPOCH_NS + number * 10**9
        queue.put(monitel.Window(definition, end_ns, end_ns, 1, 1.0, 1.0, 1.0, 1.0, 0, None, None))
    form = raw_windows(queue.queue.take(1000), WindowMapping("cumulative", 5, "both"), ENCODED_RESOURCE)
    requests = replayed(form)
    assert [256, 44] == [request.items for request in requests]
    for request in requests:
        message: Any = request.message()
        (scope,) = message.resource_metrics[0].scope_metrics
        (point,) = scope.metrics[-1].sum.data_points
        assert ("monitel.queue.size", 300, 5) == (scope.metrics[-1].name, point.as_int, point.start_time_unix_nano)
        assert form.header[4] == point.time_unix_nano


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


def ranges_of_profiler() -> Iterator[Range]:
    """Yield ranges that the recorder has made."""
    ended: list[Range] = []
    with monitel.profiler.ranges.listen(ended=ended.append), monitel.profiler.record_function("step", {"n": 1}):
        pass
    yield from ended


def test_ranges_of_the_recorder_have_plain_values() -> None:
    """Ranges of the recorder, in C or in Python, can be written without conversion."""
    ids = Identified(Period(1), INVALID_SPAN, True, b"t" * 16, b"s" * 8)
    items = [Ended(ids, each.name, each.start_ns, each.end_ns or 0, each, each.args) for each in ranges_of_profiler()]
    builder = RangeRequests(list[Any]().append, Lost(), ENCODED_RESOURCE)
    form = raw_ranges(items, builder.mapping, ENCODED_RESOURCE)
    assert [1] == [request.items for request in replayed(form)]
