"""Raw forms of log records and spans of the SDK: decoded, they become the requests of the official encoder."""

from __future__ import annotations

from collections import UserDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from tests.unit.otlp.raw.round_trip import (
    RESOURCE,
    Lost,
    Number,
    Word,
    records_of,
    replayed,
    scalars,
    text,
)

from monitel_otlp._compat import LogRecord, ReadableLogRecord, SeverityNumber
from monitel_otlp.raw.decoders import decoders
from monitel_otlp.raw.forms import raw_records, raw_spans
from monitel_otlp.sdk.record_requests import RecordRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.messages.request import FrozenRequest


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
    """Draw attributes in one of the forms that the SDK uses."""
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
    """Encode objects of the SDK at once."""
    live: list[FrozenRequest] = []
    lost = Lost()
    exporter = RecordRequests(signal, live.append, lost)
    for record in records:
        exporter.add(record)
    exporter.flush()
    return live, lost


@given(st.lists(log_records(), max_size=12))
@settings(deadline=None)
def test_log_records_of_the_sdk_are_the_same_live_and_replayed(records: list[ReadableLogRecord]) -> None:
    """The official encoder creates the same requests from decoded items."""
    live, lost = exported("logs", records)
    form = raw_records(records)
    assert records_of(live) == records_of(replayed(form))
    assert len(records) == sum(request.items for request in live)
    assert ([], 0) == (lost, form.lost)


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
    """The official encoder creates the same requests from decoded items."""
    live, lost = exported("traces", spans)
    form = raw_spans(spans)
    assert records_of(live) == records_of(replayed(form))
    assert len(spans) == sum(request.items for request in live)
    assert ([], 0) == (lost, form.lost)


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


def test_only_the_record_that_cannot_be_encoded_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Records with an unsupported body are counted as lost, and one line is logged."""
    records = [readable_record(body) for body in (1, 2**70, 3, object(), 5)]
    live, lost = exported("logs", records)
    assert ([1, 3, 5], [("logs", "encoding", 1)] * 2) == (numbered(live), lost)
    assert 1 == len(caplog.records)


def test_only_the_record_that_cannot_be_written_is_lost() -> None:
    """A record with an unsupported body is counted as lost."""
    form = raw_records([readable_record(body) for body in (1, object(), 3)])
    assert [1, 3] == numbered(replayed(form))
    assert (3, 1) == (form.tried, form.lost)


def test_only_the_item_that_cannot_be_decoded_is_lost() -> None:
    """The requests of the block have one item less, so the reader of the block can count the loss."""
    form = raw_records([readable_record(body) for body in (1, 2, 3)])
    first, second, third = form.items
    form.items = [first, (*second[:2], "yesterday", *second[3:]), third]
    assert [1, 3] == numbered(replayed(form))
    form = raw_records([readable_record(body) for body in (1, 2)])
    form.items = [("what",), *list(form.items)[1:]]
    assert [1] == [request.items for request in replayed(form)]


def test_newer_version_of_raw_items_is_refused() -> None:
    """The message asks for a newer monitel-otlp."""
    header = list(raw_records([]).header)
    header[1] = 99
    with pytest.raises(ValueError, match="use a newer monitel-otlp"):
        decoders()["records"](tuple(header))
