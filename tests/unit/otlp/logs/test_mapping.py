"""Events as log records: equal to those of the SDK and the official encoder."""

from __future__ import annotations

import logging
import math
import time
import warnings
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

import monitel
from monitel import Severity
from monitel_otel import SCHEMA_URL, SCOPE, Period, Records, timestamp_ns
from monitel_otlp._compat import LoggerProvider, LogRecordProcessor, ReadableLogRecord, encode_logs
from monitel_otlp.logs.mapping import LoggedEvent
from monitel_otlp.logs.requests import EventRequests
from monitel_otlp.logs.timestamps import Timestamps
from monitel_otlp.sdk.official_encoders import encode_resource
from monitel_otlp.traces.span_queue import Identified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from monitel_otlp._compat import ReadWriteLogRecord
    from monitel_otlp.messages.request import FrozenRequest

RESOURCE = Resource({"service.name": "train"}, SCHEMA_URL)
NOW = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)
COUNT_LIMIT = "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT"
LENGTH_LIMIT = "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT"


class Word(str):
    """A subclass of str."""

    __slots__ = ()


class Number(IntEnum):
    """A subclass of int."""

    ONE = 1


class Collected(LogRecordProcessor):
    """A processor that keeps the records of a LoggerProvider."""

    def __init__(self) -> None:
        self.records: list[ReadableLogRecord] = []

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Keep one record."""
        assert log_record.resource is not None
        self.records.append(
            ReadableLogRecord(log_record.log_record, log_record.resource, log_record.instrumentation_scope)
        )

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


def by_the_sdk(events: list[LoggedEvent]) -> list[Any]:
    """Encode events with the SDK's LoggerProvider and the official encoder."""
    collected = Collected()
    provider = LoggerProvider(RESOURCE, shutdown_on_exit=False)
    provider.add_log_record_processor(collected)
    records = Records(provider.get_logger(*SCOPE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for event, step, context, inside, observed_ns, _ in events:
            where = context if inside is None else inside.context(context)
            records.write(event, step=step, context=where, observed_ns=observed_ns)
    return list(encode_logs(collected.records).resource_logs)


def serialized(messages: Iterable[Any]) -> list[bytes]:
    """Return the messages as bytes: before protobuf 6 messages with a NaN are never equal."""
    return [message.SerializeToString() for message in messages]


def by_monitel(events: list[Any]) -> tuple[list[FrozenRequest], list[tuple[str, str, int]]]:
    """Encode events into requests; return the requests and the reported losses."""
    requests: list[FrozenRequest] = []
    lost: list[tuple[str, str, int]] = []
    builder = EventRequests(requests.append, lambda *each: lost.append(each), encode_resource(RESOURCE))
    for event in events:
        builder.add(event)
    builder.flush()
    return requests, lost


def records_in(requests: list[FrozenRequest]) -> list[Any]:
    """Return the log records of some requests."""
    messages: list[Any] = [request.message() for request in requests]
    return [
        record
        for message in messages
        for resource in message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def logged(data: dict[Any, Any] | None = None, **fields: Any) -> LoggedEvent:
    """Return a queued event with data that is not checked."""
    event = monitel.Event(fields.pop("name", "event"), fields.pop("timestamp", NOW), {})
    event.data.update(data or {})
    return LoggedEvent(event, **{"step": None, "context": Context(), "inside": None, "observed_ns": 7, **fields})


text = st.text(st.characters(codec="utf-8"), max_size=8)
values = (
    text
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.sampled_from([Word("word"), Number.ONE, None, [1], b"bytes"])
)
keys = text | st.sampled_from([Word("key"), 3, None, "training.step"])
span_contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from([TraceFlags(0), TraceFlags(1), TraceFlags(3)]),
)
contexts = st.just(Context()) | span_contexts.map(
    lambda context: set_span_in_context(NonRecordingSpan(context), Context())
)
ranges = st.none() | st.builds(
    lambda trace_id, span_id: Identified(Period(1), INVALID_SPAN, True, trace_id, span_id),
    st.integers(1, 2**128 - 1).map(lambda number: number.to_bytes(16, "big")),
    st.integers(1, 2**64 - 1).map(lambda number: number.to_bytes(8, "big")),
)
times = st.datetimes() | st.datetimes(timezones=st.just(timezone.utc) | st.timezones())


@st.composite
def logged_events(draw: Callable[[st.SearchStrategy[Any]], Any]) -> LoggedEvent:
    """Draw a queued event with any data."""
    severity = draw(st.sampled_from(Severity))
    event = monitel.Event(draw(text), draw(times), {}, severity=severity)
    event.data.update(draw(st.dictionaries(keys, values, max_size=6)))
    step = draw(st.none() | st.integers(0, 2**63 - 1))
    return LoggedEvent(event, step, draw(contexts), draw(ranges), draw(st.integers(0, 2**64 - 1)))


@given(st.lists(logged_events(), min_size=1, max_size=5))
def test_events_are_encoded_as_the_sdk_does(events: list[LoggedEvent]) -> None:
    """Resource, scope and all fields of each record are equal to those of the official encoder."""
    requests, lost = by_monitel(events)
    assert [] == lost
    (request,) = requests
    message: Any = request.message()
    assert serialized(by_the_sdk(events)) == serialized(message.resource_logs)
    assert (len(events), b"", 0) == (request.items, request.weights, request.synthetic)


@pytest.mark.parametrize("count", ["", "0", "1", "3", "128"])
@pytest.mark.parametrize("length", ["", "0", "2"])
def test_limits_of_the_sdk_hold(monkeypatch: pytest.MonkeyPatch, count: str, length: str) -> None:
    """Attributes beyond the standard limits are dropped and counted in the record, as by the SDK."""
    monkeypatch.setenv(COUNT_LIMIT, count)
    monkeypatch.setenv(LENGTH_LIMIT, length)
    events = [logged({"a": "text", "b": 1, "c": "é", "d": 2.5}, step=3), logged(), logged({"a": "x" * 9})]
    message: Any = by_monitel(events)[0][0].message()
    assert by_the_sdk(events) == list(message.resource_logs)


def test_malformed_limit_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the limit is not a number, 128 attributes are kept."""
    monkeypatch.setenv(COUNT_LIMIT, "many")
    (record,) = records_in(by_monitel([logged({str(number): number for number in range(130)})])[0])
    assert (128, 2) == (len(record.attributes), record.dropped_attributes_count)


def test_event_with_many_attributes_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """An event with 20,000 attributes, some of them invalid, is cut with one warning, however often it is logged."""
    event = logged({**{str(number): number for number in range(20_000)}, "odd": object()})
    requests, _ = by_monitel([event, event])
    assert [128, 128] == [len(record.attributes) for record in records_in(requests)]
    assert [logging.WARNING] == [record.levelno for record in caplog.records]


def test_unsupported_values_are_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Only the value that a log record cannot hold is left out, with one warning for each event name."""
    events = [logged({"good": 1, "large": 2**63, "none": None}, name=name) for name in ("a", "a", "b")]
    requests, lost = by_monitel(events)
    assert [["good"]] * 3 == [[each.key for each in record.attributes] for record in records_in(requests)]
    assert [] == lost
    assert ["event 'a': 'large' cannot be an attribute and is left out"] == caplog.messages[:1]
    assert 2 == len(caplog.messages)


def test_text_that_is_not_utf8_is_escaped() -> None:
    """A lone surrogate is escaped in keys and in values."""
    (record,) = records_in(by_monitel([logged({"k\udc80": "v\udcff"})])[0])
    assert [(r"k\udc80", r"v\udcff")] == [(each.key, each.value.string_value) for each in record.attributes]


class Broken:
    """An object that is not an event."""

    name = "broken"

    @property
    def data(self) -> dict[str, Any]:
        """Raise."""
        raise RuntimeError("broken")


def test_broken_events_do_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    """Events that cannot be encoded are counted as lost, and one line is logged."""
    broken = [(Broken(), *logged()[1:]), logged(observed_ns=-1), None]
    requests, lost = by_monitel([logged(step=1), *broken, logged(step=2)])
    assert [1, 2] == [record.attributes[0].value.int_value for record in records_in(requests)]
    assert [("logs", "encoding", 1)] * 3 == lost
    assert 1 == len(caplog.records)
    assert [2] == [request.items for request in requests]


@pytest.mark.parametrize(("events", "size", "expected"), [(1100, 1, [500, 500, 100]), (9, 300_000, [4, 4, 1])])
def test_size_of_requests_is_limited(events: int, size: int, expected: list[int]) -> None:
    """A request has at most 500 records and about 1 MiB."""
    requests, _ = by_monitel([logged({"text": "x" * size})] * events)
    assert expected == [request.items for request in requests]
    assert all(abs(request.created_ns - time.time_ns()) < 60e9 for request in requests)


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneInfo]:
    """Set the local time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield ZoneInfo(request.param)
    monkeypatch.undo()
    time.tzset()


def test_local_times_are_converted_exactly(zone: ZoneInfo) -> None:
    """Cached offsets are right around each change of the clocks, in both directions and with both folds."""
    begin = datetime(2010, 1, 1, tzinfo=timezone.utc)  # in 2010 clocks changed a minute after midnight in St. John's
    hours = [begin + timedelta(hours=each) for each in range(366 * 24)]
    offsets = [hour.astimezone(zone).utcoffset() for hour in hours]
    changes = [hours[each] for each in range(1, len(hours)) if offsets[each] != offsets[each - 1]]
    ns = Timestamps().ns
    for change in [*changes, begin]:
        for minutes in range(-150, 150, 5):
            local = change.astimezone(zone).replace(tzinfo=None) + timedelta(minutes=minutes, seconds=1)
            for fold in (0, 1, 1, 0):
                moment = local.replace(fold=fold)
                assert timestamp_ns(moment) == ns(moment)


def test_change_of_the_local_zone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``time.tzset()`` the cached offset of the previous zone is not used."""
    ns, moment, found = Timestamps().ns, datetime(2026, 7, 1, 12), []  # noqa: DTZ001  local time is the subject
    for name in ("Europe/Berlin", "Asia/Tokyo", "UTC"):
        monkeypatch.setenv("TZ", name)
        time.tzset()
        found += [ns(moment) == timestamp_ns(moment), ns(moment) == timestamp_ns(moment)]
    monkeypatch.undo()
    time.tzset()
    assert [True] * 6 == found


@given(st.lists(times, min_size=1, max_size=4))
def test_any_time_is_converted_exactly(moments: list[datetime]) -> None:
    """The result is equal to that of :func:`monitel_otel.timestamp_ns`."""
    ns = Timestamps().ns
    assert [timestamp_ns(moment) for moment in moments] == [ns(moment) for moment in moments]


def test_values_that_are_not_finite_are_kept() -> None:
    """NaN and infinities are valid attributes."""
    (record,) = records_in(by_monitel([logged({"nan": math.nan, "inf": -math.inf})])[0])
    nan, inf = (each.value.double_value for each in record.attributes)
    assert (True, -math.inf) == (math.isnan(nan), inf)
