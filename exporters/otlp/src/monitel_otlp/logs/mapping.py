"""Mapping of events to log records of the protocol: a queued event, its plain values, its fields."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import get_current_span

import monitel
from monitel.attributes import escape_surrogates
from monitel_otel.records import EventFields, timestamp_ns
from monitel_otel.scope import SCOPE
from monitel_otlp._compat import SeverityNumber, log_record_limits
from monitel_otlp.messages.attributes import Limits, plain_attributes, plain_value, write_attributes, write_value
from monitel_otlp.messages.request_builder import ItemRequests, RequestBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.traces.span_queue import Identified

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  subtracted from naive datetimes
_MICROSECOND = timedelta(microseconds=1)
_BLOCK = timedelta(minutes=15)
_LATEST_NS = 2**64 - 1  # the field of the protocol is unsigned, 64 bits


class Timestamps:
    """Converts datetimes to Unix ns, like :func:`monitel_otel.records.timestamp_ns` but ten times as fast.

    Naive datetimes are local time. Their offset from UTC is cached for a quarter of an hour if the offset is the same
    at both ends and for both values of ``fold``; otherwise the clocks change in between. :func:`time.tzset` invalidates
    the cache.
    """

    def __init__(self) -> None:
        nothing = datetime.min  # noqa: DTZ901  an empty block
        self._block: tuple[datetime, datetime, int, object] = nothing, nothing, 0, None

    def ns(self, timestamp: datetime) -> int:
        """Return nanoseconds since the Unix epoch, limited to the range of the protocol."""
        try:
            if timestamp.tzinfo is not None:
                elapsed_ns = (timestamp - _EPOCH) // _MICROSECOND * 1000
            else:
                begin, end, offset_ns, zone = self._block
                if zone is not time.tzname or not begin <= timestamp < end:  # tzset() makes a new tuple
                    return self._uncached(timestamp)
                elapsed_ns = (timestamp - _LOCAL_EPOCH) // _MICROSECOND * 1000 - offset_ns
        except (TypeError, OverflowError, ValueError):  # a zone without an offset is local time
            return timestamp_ns(timestamp)
        if elapsed_ns < 0:
            return 0
        return elapsed_ns if elapsed_ns <= _LATEST_NS else _LATEST_NS

    def _uncached(self, timestamp: datetime) -> int:
        zone = time.tzname
        begin = timestamp.replace(minute=timestamp.minute // 15 * 15, second=0, microsecond=0, fold=0)
        offsets = {_offset_ns(each.replace(fold=fold)) for each in (begin, begin + _BLOCK) for fold in (0, 1)}
        if len(offsets) == 1:
            self._block = begin, begin + _BLOCK, offsets.pop(), zone
        return timestamp_ns(timestamp)


def _offset_ns(timestamp: datetime) -> int:
    utc = timestamp.astimezone(timezone.utc).replace(tzinfo=None)
    return (timestamp - utc) // _MICROSECOND * 1000


_SAMPLED = 1  # in the flags of a trace
_LOGGER = 10  # index of the logger's name in a PlainEvent
_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2

#: Time, time of logging, severity, name, body (None stands for the name), attributes, number of dropped attributes,
#: trace id, span id, flags. A record of ``logging`` also has the name of its logger, and the text of its severity.
PlainEvent = tuple[Any, ...]


class LoggedRecord(NamedTuple):
    """A record of Python's ``logging``.

    Attributes:
        logger: The name of the logger, which is the scope.
        time_ns: Time of the record, Unix ns.
        severity: Its severity as a number of OpenTelemetry.
        severity_text: The name of its level.
        body: The message.
        attributes: The attributes.
    """

    logger: str
    time_ns: int
    severity: int
    severity_text: str
    body: Any
    attributes: dict[str, Any]


class LoggedEvent(NamedTuple):
    """A queued event.

    Attributes:
        event: The event. Its data is read when it is encoded.
        step: Training step at the time of logging.
        context: OpenTelemetry context at the time of logging.
        inside: The innermost open range that becomes a span. It takes precedence over the span of the context.
        observed_ns: Time of logging, Unix ns.
        number: Its number in the journal of the black box; 0 if it is not there.
    """

    event: monitel.Event | LoggedRecord
    step: int | None
    context: Context
    inside: Identified | None
    observed_ns: int
    number: int = 0


class EventMapping:
    """Turns events into log records, with the same fields as :class:`monitel_otel.records.Records` and the SDK.

    Attributes beyond the limits are dropped, and long texts are truncated, like in the SDK. A structured body has no
    limits.
    """

    def __init__(self) -> None:
        limits = log_record_limits()
        count, length = limits.max_log_record_attributes, limits.max_log_record_attribute_length
        self._limits = Limits("event", count, length)
        self._ns = Timestamps().ns
        self._fields = EventFields()

    def plain(self, item: tuple[Any, ...]) -> PlainEvent:
        """Return a queued event as exact built-in values.

        Args:
            item: A :class:`LoggedEvent`, or a tuple of its fields.
        """
        event, step, context, inside, observed_ns = item[:5]
        ids = _ids(context) if inside is None else (inside.trace_id, inside.span_id, _SAMPLED)
        if isinstance(event, LoggedRecord):
            attributes = plain_attributes(event.attributes)
            dropped = self._limits.apply(event.logger, attributes) if self._limits.exceeded(len(attributes)) else 0
            of_logger = str.__str__(event.logger), str.__str__(event.severity_text)
            body = plain_value(event.body)
            return event.time_ns, observed_ns, event.severity, "", body, attributes, dropped, *ids, *of_logger
        name = escape_surrogates(event.name)
        body, attributes = self._fields.of(event, step)
        if isinstance(event, monitel.RunConfig):
            body = plain_value(body)
        dropped = self._limits.apply(name, attributes) if self._limits.exceeded(len(attributes)) else 0
        time_ns = self._ns(event.timestamp)
        return time_ns, observed_ns, int(event.severity), name, body, attributes, dropped, *ids

    def limited(self, plain: PlainEvent) -> PlainEvent:
        """Apply the limits to an event that another process than its own has made."""
        attributes = dict(plain[5])
        return (*plain[:5], attributes, self._limits.apply(plain[3], attributes), *plain[7:])

    @staticmethod
    def scope_of(plain: PlainEvent) -> tuple[str, str, str] | None:
        """Return the scope of an application's log record; None for an event."""
        return (plain[_LOGGER], "", "") if len(plain) > _LOGGER else None

    @staticmethod
    def write(plain: PlainEvent, record: Any) -> None:
        """Fill a new log record of the protocol."""
        time_ns, observed_ns, severity, name, body, attributes, dropped, trace_id, span_id, flags, *of_logger = plain
        record.time_unix_nano = time_ns
        record.observed_time_unix_nano = observed_ns
        record.severity_number = severity
        record.severity_text = of_logger[1] if of_logger else _SEVERITY_TEXTS.get(severity, "")
        record.event_name = name
        if body is not None:
            write_value(record.body, body)
        elif not of_logger:
            record.body.string_value = name
        if attributes:
            write_attributes(record.attributes, attributes)
        if dropped:
            record.dropped_attributes_count = dropped
        if flags:
            record.flags = flags
        if trace_id:
            record.trace_id = trace_id
        if span_id:
            record.span_id = span_id


def _ids(context: Context | None) -> tuple[bytes, bytes, int]:
    """Return trace id, span id and flags of the span of a context; empty without a span."""
    if not context:
        return b"", b"", 0
    span = get_current_span(context).get_span_context()
    trace_id, span_id = span.trace_id, span.span_id
    return (
        trace_id.to_bytes(16, "big") if trace_id else b"",
        span_id.to_bytes(8, "big") if span_id else b"",
        int(span.trace_flags),
    )


class EventRequests(ItemRequests):
    """Encodes events into requests of at most 500 log records or about 1 MiB.

    Args:
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        resource: The resource and its schema; see :func:`monitel_otlp.messages.resource.encode_resource`.
    """

    def __init__(
        self,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        resource: bytes,
    ) -> None:
        self.mapping = EventMapping()
        builder = RequestBuilder("logs", resource, SCOPE, self.mapping.write, put, scope_of=self.mapping.scope_of)
        super().__init__("an event", "logs", builder, lost)

    def add(self, item: tuple[Any, ...]) -> None:
        """Encode one event, a :class:`monitel_otlp.logs.mapping.LoggedEvent`. Never raises."""
        self._add(lambda: self.mapping.plain(item))
