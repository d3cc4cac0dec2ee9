"""Raw items: what is written to disk unencoded becomes the same requests as it would have live."""

from __future__ import annotations

import marshal
import math
from collections import UserDict
from dataclasses import replace
from datetime import datetime, timezone
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

import monitel
from monitel import Aggregation, Histogram
from monitel.profiler.ranges import Range, Track
from monitel_otel import Period
from monitel_otlp import raw
from monitel_otlp.leaves import LEVELS, count_leaves
from monitel_otlp.logs.mapping import LoggedEvent
from monitel_otlp.logs.requests import EventRequests
from monitel_otlp.metrics.mapping import mapping_of
from monitel_otlp.metrics.queue_size import PIPELINE_SCOPE
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.sdk._compat import LogRecord, ReadableLogRecord, SeverityNumber
from monitel_otlp.sdk.encoder import encode_resource
from monitel_otlp.sdk.exporters import WINDOWS_PER_STEP, BatchExporter, WindowExporter
from monitel_otlp.traces.mapping import SpanRequests
from monitel_otlp.traces.span_queue import Ended, Identified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.raw import RawForm
    from monitel_otlp.request import FrozenRequest

BLOCK = 256
RESOURCE = Resource({"service.name": "train", "training.rank": 3}, "https://example.test/schema")
ENCODED_RESOURCE = encode_resource(RESOURCE)
EXACT = (type(None), bool, int, float, str, bytes)
EPOCH_NS = 1_767_225_600_000_000_000


class Word(str):
    """A str of another type."""

    __slots__ = ()


class Number(IntEnum):
    """An int of another type."""

    ONE = 1


def is_exact(value: Any) -> bool:
    """Return True if a value has exact built-in types only, all the way down."""
    if type(value) in (list, tuple):
        return all(map(is_exact, value))
    if type(value) is dict:
        return all(type(key) is str and is_exact(each) for key, each in value.items())
    return type(value) in EXACT


def replayed(form: RawForm) -> list[FrozenRequest]:
    """Return the requests that a raw form becomes after its way through marshal, block by block."""
    assert is_exact(form.header)
    assert is_exact(form.items)
    decoder = raw.decoders()[form.header[0]](marshal.loads(marshal.dumps(form.header, 4)))
    blocks = [form.items[begin : begin + BLOCK] for begin in range(0, len(form.items), BLOCK)]
    requests = []
    for block in blocks:
        found = decoder.decode(marshal.loads(marshal.dumps(block, 4)))
        assert all(request.items <= BLOCK and request.created_ns == form.header[4] for request in found)
        requests += found
    return requests


def leaves_of(requests: list[FrozenRequest]) -> list[tuple[Any, ...]]:
    """Return each record or span with its resource, scope and weight, in order."""
    found = []
    for request in requests:
        message: Any = request.message()
        resources, scopes, leaves = LEVELS[request.signal]
        weights = iter(weights_of(request))
        for resource in getattr(message, resources):
            for scope in getattr(resource, scopes):
                for leaf in getattr(scope, leaves):
                    owner = resource.resource.SerializeToString(), resource.schema_url, scope.schema_url
                    found.append((*owner, scope.scope.SerializeToString(), exact_bytes(leaf), next(weights)))
    return found


def exact_bytes(message: Any) -> bytes:
    """Return a message's bytes."""
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def weights_of(request: FrozenRequest) -> list[int]:
    """Return a request's weights, one for each leaf."""
    leaves = count_leaves(request.message(), LEVELS[request.signal])
    weights = list(memoryview(request.weights).cast("I")) if request.weights else [int(bool(request.items))] * leaves
    assert leaves == len(weights)
    assert request.items == sum(weights)
    return weights


class Lost(list[tuple[str, str, int]]):
    """Collects lost items."""

    def __call__(self, *each: Any) -> None:
        """Collect a report."""
        self.append(each)


# Events

text = st.text(st.characters(codec="utf-8"), max_size=6)
integers = st.integers(-(2**63), 2**63 - 1)
scalars = text | st.booleans() | integers | st.floats() | st.sampled_from([Word("w"), Number.ONE])
numpy_scalars = st.sampled_from([np.float64(1.5), np.int64(2)])
plain_span_contexts = st.builds(SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())


@st.composite
def logged_events(draw: Callable[[st.SearchStrategy[Any]], Any]) -> LoggedEvent:
    """Draw a queued event."""
    moment = draw(st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(timezone.utc)))  # noqa: DTZ001  bound
    event = monitel.Event(draw(text), moment, {})
    event.data.update(draw(st.dictionaries(text, scalars | numpy_scalars, max_size=4)))
    return LoggedEvent(event, draw(st.none() | st.integers(0, 9)), Context(), None, draw(st.integers(0, 2**63)))


@given(st.lists(logged_events(), max_size=6), st.integers(1, 200))
@settings(max_examples=40)
def test_events_are_the_same_live_and_replayed(events: list[LoggedEvent], times: int) -> None:
    """Records with their resource and scope, several blocks of them."""
    live: list[FrozenRequest] = []
    lost = Lost()
    builder = EventRequests(live.append, lost, ENCODED_RESOURCE)
    for event in events * times:
        builder.add(event)
    builder.flush()
    form = raw.raw_events(events * times, builder.mapping, ENCODED_RESOURCE)
    assert ([], 0) == (lost, form.lost)
    assert leaves_of(live) == leaves_of(replayed(form))


# Ranges


class _Range:
    """A range as far as its span is concerned."""

    def __init__(self, step: int | None, track: Track, end_ns: int) -> None:
        self.step, self.track, self.end_ns = step, track, end_ns


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
    found: Any = _Range(draw(st.none() | st.integers(0, 9)), draw(st.sampled_from(TRACKS)), end_ns - unfinished)
    return Ended(ids, name, start_ns, end_ns, found, draw(arguments))


@given(st.lists(ended_ranges(), max_size=6), st.integers(1, 200))
@settings(max_examples=40)
def test_ranges_are_the_same_live_and_replayed(items: list[Any], times: int) -> None:
    """Spans with their resource, scope and weights; spans that monitel made itself are not items."""
    live: list[FrozenRequest] = []
    lost = Lost()
    builder = SpanRequests(live.append, lost, ENCODED_RESOURCE)
    for item in items * times:
        builder.add(item) if isinstance(item, Ended) else builder.add(*item)
    builder.flush()
    form = raw.raw_ranges(items * times, builder.mapping, ENCODED_RESOURCE)
    requests = replayed(form)
    assert ([], 0) == (lost, form.lost)
    assert leaves_of(live) == leaves_of(requests)
    synthetic = sum(not isinstance(item, Ended) for item in items) * times
    assert synthetic == sum(request.synthetic for request in live) == sum(request.synthetic for request in requests)
    assert len(items) * times - synthetic == sum(request.items for request in requests)


# Windows

SERIES: list[tuple[str, dict[str, Any]]] = [("a", {}), ("a", {"k": True}), ("a", {"k": 1}), ("b c", {})]
STEPS = st.sampled_from([0, 1, 999_999, 1_000_000]) | st.integers(-2_000_000, 3_000_000)
numbers = st.integers(-80, 80).map(lambda number: number / 8)
samples = numbers | numbers.map(abs) | st.sampled_from([math.nan, math.inf, 1e300])


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
    """Return the points of windows with everything about their metric, by metric."""
    found: dict[str, list[bytes]] = {}
    for request in requests:
        message: Any = request.message()
        (resource,) = message.resource_metrics
        assert ENCODED_RESOURCE == resource.resource.SerializeToString()
        for metric in resource.scope_metrics[0].metrics:
            assert ("monitel", monitel.__version__) == tuple(
                getattr(resource.scope_metrics[0].scope, each) for each in ("name", "version")
            )
            data = getattr(metric, metric.WhichOneof("data"))
            points = [exact_bytes(point) for point in data.data_points]
            del data.data_points[:]
            found.setdefault(repr(metric), []).extend(points)
    return found


@pytest.mark.filterwarnings("ignore:overflow encountered")
@given(
    closed_windows(),
    st.integers(0, 3),
    st.sampled_from(["cumulative", "delta"]),
    st.sampled_from(["percentiles", "histogram", "both"]),
    st.integers(1, 50),
)
@settings(max_examples=80, deadline=None)
def test_windows_are_the_same_live_and_replayed(
    windows: list[monitel.Window], steps: int, kind: str, distributions: str, limit: int
) -> None:
    """Points with everything about them, although some windows went out before or were dropped."""
    queue = WindowQueue(limit, 1 << 30, {"training.rank": 3})
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = WindowExporter(mapping_of(kind, 5, distributions), lambda: 4, RESOURCE, live.append, lost)
    for number, window in enumerate(windows):
        queue.put(window)
        if number < steps * 3 and number % 3 == 2:
            exporter.add(queue.queue.take(WINDOWS_PER_STEP))
            exporter.flush()
    live.clear()
    left = queue.queue.take(limit)
    form = raw.raw_windows(left, exporter.mapping, exporter.resource)
    for begin in range(0, len(left), WINDOWS_PER_STEP):
        exporter.add(left[begin : begin + WINDOWS_PER_STEP])
    exporter.flush()
    requests = replayed(form)
    assert points_of_windows(live) == points_of_windows(requests)
    assert ([], len(left)) == (lost, sum(sum(weights_of(request)) for request in live))
    assert len(left) == sum(sum(weights_of(request)) for request in requests)


def test_replayed_windows_carry_the_queue_size_of_their_time() -> None:
    """Prometheus orders samples by resource: each request has a sample of the time at which the header was written."""
    queue = WindowQueue(1000, 1 << 30)
    definition = monitel.StatDefinition("x", (monitel.COUNT,), "", "", MappingProxyType({}), monotonic=False)
    for number in range(300):
        end_ns = EPOCH_NS + number * 10**9
        queue.put(monitel.Window(definition, end_ns, end_ns, 1, 1.0, 1.0, 1.0, 1.0, 0, None, None))
    form = raw.raw_windows(queue.queue.take(1000), mapping_of("cumulative", 5, "both"), ENCODED_RESOURCE)
    requests = replayed(form)
    assert [256, 44] == [request.items for request in requests]
    for request in requests:
        message: Any = request.message()
        scope = message.resource_metrics[0].scope_metrics[1]
        (point,) = scope.metrics[0].sum.data_points
        assert (PIPELINE_SCOPE, 300, form.header[4]) == (scope.scope.name, point.as_int, point.time_unix_nano)


# Log records and spans of the SDK

names = text.filter(bool)
any_values = st.recursive(
    scalars | st.none() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(names, inner, max_size=3),
    max_leaves=3,
)
attribute_maps = st.dictionaries(names, any_values, max_size=4)
resources = st.sampled_from([RESOURCE, Resource({"a": Word("b"), "many": ["x", "y"]}), Resource.get_empty()])
scopes = st.sampled_from(
    [None, InstrumentationScope("app"), InstrumentationScope("app", "1", "https://example.test", {"k": Number.ONE})]
)


@st.composite
def bounded_attributes(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Draw attributes as the SDK holds them."""
    attributes = draw(attribute_maps)
    kind = draw(st.sampled_from(["none", "plain", "other", "bounded", "cut"]))
    if kind == "none":
        return None
    if kind in {"plain", "other"}:
        return attributes if kind == "plain" else UserDict(attributes)
    made = BoundedAttributes(attributes=attributes, immutable=False)
    made.dropped = 3 * (kind == "cut")
    return made


@st.composite
def log_records(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ReadableLogRecord:
    """Draw a log record of the SDK."""
    record = LogRecord(
        timestamp=draw(st.none() | st.integers(0, 2**63)),
        observed_timestamp=draw(st.integers(0, 2**63).map(np.uint64) | st.integers(0, 2**63)),
        severity_text=draw(st.none() | text | st.just(Word("INFO"))),
        severity_number=draw(st.none() | st.sampled_from(SeverityNumber)),
        body=draw(any_values),
        attributes=draw(bounded_attributes()),
        event_name=draw(st.none() | text),
    )
    record.trace_id, record.span_id = draw(st.integers(0, 2**128 - 1)), draw(st.integers(0, 2**64 - 1))
    record.trace_flags = TraceFlags(draw(st.integers(0, 3)))
    return ReadableLogRecord(record, draw(resources), draw(scopes))


def exported(signal: str, records: list[Any]) -> tuple[list[FrozenRequest], Lost]:
    """Encode objects of the SDK live."""
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = BatchExporter(signal, live.append, lost)
    for record in records:
        exporter.add(record)
    exporter.flush()
    return live, lost


@given(st.lists(log_records(), max_size=12))
@settings(deadline=None)
def test_log_records_of_the_sdk_are_the_same_live_and_replayed(records: list[ReadableLogRecord]) -> None:
    """The official encoder makes the same request of what was written to disk."""
    live, lost = exported("logs", records)
    form = raw.raw_records(records)
    assert ([], 0) == (lost, form.lost)
    assert leaves_of(live) == leaves_of(replayed(form))
    assert len(records) == sum(request.items for request in live)


span_contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from([TraceFlags(0), TraceFlags(1)]),
    st.sampled_from([None, TraceState(), TraceState([("vendor", "1"), ("other", "x=y")])]),
)


@st.composite
def sdk_spans(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ReadableSpan:
    """Draw a span of the SDK."""
    events = draw(st.lists(st.builds(Event, text, bounded_attributes(), st.integers(0, 2**63)), max_size=3))
    links = draw(st.lists(st.builds(Link, span_contexts, bounded_attributes()), max_size=3))
    cut = BoundedList.from_seq(max(1, len(events)), events)
    cut.dropped = 2
    return ReadableSpan(
        name=draw(text | st.just(Word("span"))),
        context=draw(span_contexts),
        parent=draw(st.none() | span_contexts),
        resource=draw(resources),
        attributes=draw(bounded_attributes()),
        events=draw(st.sampled_from([events, cut])),
        links=links,
        kind=draw(st.sampled_from(SpanKind)),
        status=draw(st.sampled_from([Status(), Status(StatusCode.OK), Status(StatusCode.ERROR, "why")])),
        start_time=draw(st.none() | st.integers(0, 2**63)),
        end_time=draw(st.integers(0, 2**63).map(np.uint64)),
        instrumentation_scope=draw(scopes),
    )


@given(st.lists(sdk_spans(), max_size=10))
@settings(deadline=None, max_examples=40)
def test_spans_of_the_sdk_are_the_same_live_and_replayed(spans: list[ReadableSpan]) -> None:
    """The official encoder makes the same request of what was written to disk."""
    live, lost = exported("traces", spans)
    form = raw.raw_spans(spans)
    assert ([], 0) == (lost, form.lost)
    assert leaves_of(live) == leaves_of(replayed(form))
    assert len(spans) == sum(request.items for request in live)


# Faults


def readable_record(body: Any) -> ReadableLogRecord:
    """Return a log record with this body."""
    return ReadableLogRecord(LogRecord(body=body, observed_timestamp=1), RESOURCE)


def numbered(requests: list[FrozenRequest]) -> list[int]:
    """Return the bodies of log records that are numbers."""
    messages: list[Any] = [request.message() for request in requests]
    return [
        record.body.int_value
        for message in messages
        for resource in message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def test_one_record_that_cannot_be_encoded_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Of a batch only the record with an impossible body is lost; it is counted and logged once."""
    records = [readable_record(body) for body in (1, 2**70, 3, object(), 5)]
    live, lost = exported("logs", records)
    assert ([1, 3, 5], [("logs", "encoding", 1)] * 2) == (numbered(live), lost)
    assert 1 == len(caplog.records)


def test_one_record_that_cannot_be_written_costs_no_other() -> None:
    """Of a raw form only the record with an impossible body is lost, and counted."""
    form = raw.raw_records([readable_record(body) for body in (1, object(), 3)])
    assert (1, [1, 3]) == (form.lost, numbered(replayed(form)))


def test_one_item_that_cannot_be_decoded_costs_no_other() -> None:
    """The requests of a block have one item less: whoever reads the block counts what is missing."""
    form = raw.raw_records([readable_record(body) for body in (1, 2, 3)])
    form.items[1] = (*form.items[1][:2], "yesterday", *form.items[1][3:])
    assert [1, 3] == numbered(replayed(form))
    form = raw.raw_records([readable_record(body) for body in (1, 2)])
    form.items[0] = ("what",)
    assert [1] == [request.items for request in replayed(form)]


def test_one_window_that_cannot_be_encoded_costs_no_other() -> None:
    """Its half-written points are removed, and the totals of the others stay right."""
    queue = WindowQueue(10, 1 << 30)
    asked = (monitel.COUNT, monitel.SUM, monitel.MEAN)
    definition = monitel.StatDefinition("x", asked, "", "", MappingProxyType({}), monotonic=False)
    for second, count in enumerate([1, 0, 1, 1]):  # the second one has no mean
        end_ns = EPOCH_NS + second * 10**9
        queue.put(monitel.Window(definition, end_ns, end_ns, count, 2.0, 2.0, 2.0, 2.0, 0, None, None))
    entries = queue.queue.take(10)
    odd: Any = object()
    entries[2] = entries[2]._replace(window=replace(entries[2].window, min=odd))
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = WindowExporter(mapping_of("cumulative", 5, "both"), lambda: 0, RESOURCE, live.append, lost)
    exporter.add(entries)
    exporter.flush()
    (request,) = live
    message: Any = request.message()
    metrics = {each.name: each for each in message.resource_metrics[0].scope_metrics[0].metrics}
    assert [2.0, 2.0] == [point.as_double for point in metrics["x.mean"].gauge.data_points]
    assert [1, 3] == [point.as_int for point in metrics["x.count"].sum.data_points]
    assert (2, 2) == (request.items, sum(weights_of(request)))
    assert [("metrics", "encoding", 2)] == lost


def test_another_version_of_raw_items_is_refused() -> None:
    """A segment of a newer version is not misread."""
    header = list(raw.raw_records([]).header)
    header[1] = 99
    with pytest.raises(ValueError, match="use a newer monitel-otlp"):
        raw.decoders()["records"](tuple(header))


def ranges_of_profiler() -> Iterator[Range]:
    """Yield ranges as the recorder makes them."""
    ended: list[Range] = []
    with monitel.profiler.ranges.listen(ended=ended.append), monitel.profiler.record_function("step", {"n": 1}):
        pass
    yield from ended


def test_ranges_of_the_recorder_have_plain_values() -> None:
    """What the recorder hands over, in C or in Python, is written as it is."""
    ids = Identified(Period(1), INVALID_SPAN, True, b"t" * 16, b"s" * 8)
    items = [Ended(ids, each.name, each.start_ns, each.end_ns or 0, each, each.args) for each in ranges_of_profiler()]
    builder = SpanRequests(list[Any]().append, Lost(), ENCODED_RESOURCE)
    form = raw.raw_ranges(items, builder.mapping, ENCODED_RESOURCE)
    assert [1] == [request.items for request in replayed(form)]
