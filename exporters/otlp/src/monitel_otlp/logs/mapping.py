"""Mapping of events to log records of the protocol: a queued event, its plain values, its fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import get_current_span

import monitel
from monitel.attributes import escape_surrogates, fits_int64
from monitel_otlp._compat import SeverityNumber
from monitel_otlp.logs.timestamps import Timestamps
from monitel_otlp.messages.attributes import plain_value, write_attributes, write_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from monitel_otlp._compat import LogRecordLimits
    from monitel_otlp.messages.attributes import Plain
    from monitel_otlp.traces.span_queue import Identified

_log = logging.getLogger("monitel.otlp")

_SAMPLED = 1  # in the flags of a trace
_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2

#: Time, time of logging, severity, name, body (None stands for the name), attributes, number of dropped attributes,
#: trace id, span id, flags.
PlainEvent = tuple[int, int, int, str, "Plain", "dict[str, Plain]", int, bytes, bytes, int]


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

    event: monitel.Event
    step: int | None
    context: Context
    inside: Identified | None
    observed_ns: int
    number: int = 0


class EventMapping:
    """Turns events into log records, with the same fields as :class:`monitel_otel.Records` and the SDK.

    The body of logged numbers and of a configuration is structured; it has no limits.

    An attribute that the protocol cannot hold is left out. Attributes beyond the limits are dropped, and long texts
    are truncated, like in the SDK. A warning is logged once for each event name.

    Args:
        limits: The limits of attributes, from the variables of the SDK.
    """

    def __init__(self, limits: LogRecordLimits) -> None:
        self._max_attributes = limits.max_log_record_attributes
        self._max_length = limits.max_log_record_attribute_length
        self._ns = Timestamps().ns
        self._warned: set[str] = set()

    def plain(self, item: tuple[Any, ...]) -> PlainEvent:
        """Return a queued event as exact built-in values.

        Args:
            item: A :class:`LoggedEvent`, or a tuple of its fields.
        """
        event, step, context, inside, observed_ns = item[:5]
        name = escape_surrogates(event.name)
        attributes: dict[str, Plain] = {}
        if step is not None:
            self._set(attributes, name, "training.step", step)
        body: Plain = None
        if isinstance(event, monitel.LoggedNumbers):
            body = self._set_all({}, name, event.data)
            self._set_all(attributes, name, event.attributes)
        elif isinstance(event, monitel.RunConfig):
            body = plain_value(event.config)
        else:
            self._set_all(attributes, name, event.data)
        dropped = self._limit(name, attributes)
        ids = _ids(context) if inside is None else (inside.trace_id, inside.span_id, _SAMPLED)
        time_ns = self._ns(event.timestamp)
        return time_ns, observed_ns, int(event.severity), name, body, attributes, dropped, *ids

    @staticmethod
    def write(plain: PlainEvent, record: Any) -> None:
        """Fill a new log record of the protocol."""
        time_ns, observed_ns, severity, name, body, attributes, dropped, trace_id, span_id, flags = plain
        record.time_unix_nano = time_ns
        record.observed_time_unix_nano = observed_ns
        record.severity_number = severity
        record.severity_text = _SEVERITY_TEXTS.get(severity, "")
        record.event_name = name
        if body is None:
            record.body.string_value = name
        else:
            write_value(record.body, body)
        if attributes:
            write_attributes(record.attributes, attributes)
            if dropped:
                record.dropped_attributes_count = dropped
        elif dropped:
            record.dropped_attributes_count = dropped
        if flags:
            record.flags = flags
        if trace_id:
            record.trace_id = trace_id
        if span_id:
            record.span_id = span_id

    def _set_all(self, attributes: dict[str, Plain], name: str, values: Mapping[str, Any]) -> dict[str, Plain]:
        """Set attributes from values of any type, without those that cannot be attributes, and return them."""
        for key, value in dict(values).items():
            kind = type(value)
            if type(key) is str and key and key.isascii() and (kind is float or (kind is str and value.isascii())):
                attributes[key] = value
            else:
                self._set(attributes, name, key, value)
        return attributes

    def _set(self, attributes: dict[str, Plain], name: str, key: object, value: object) -> None:
        """Set an attribute from a value of any type, or leave it out, like :class:`monitel_otel.Records`."""
        if isinstance(key, str) and key:
            if isinstance(value, bool):
                attributes[escape_surrogates(key)] = value
                return
            if isinstance(value, int) and fits_int64(value):
                attributes[escape_surrogates(key)] = int.__int__(value)
                return
            if isinstance(value, str):
                attributes[escape_surrogates(key)] = escape_surrogates(value)
                return
            if isinstance(value, float):
                attributes[escape_surrogates(key)] = float.__float__(value)
                return
        self._warn(name, "event %r: %r cannot be an attribute and is left out", key)

    def _limit(self, name: str, attributes: dict[str, Plain]) -> int:
        """Apply the limits: keep the newest attributes, and return the number of dropped attributes."""
        if self._max_length is not None:
            for key, value in attributes.items():
                if type(value) is str and len(value) > self._max_length:
                    attributes[key] = value[: self._max_length]
                    self._warn(name, "event %r: a text longer than %d characters is truncated", self._max_length)
        if self._max_attributes is None or len(attributes) <= self._max_attributes:
            return 0
        dropped = len(attributes) - self._max_attributes
        for key in list(attributes)[:dropped]:
            del attributes[key]
        self._warn(name, "event %r: more than %d attributes; the first ones are dropped", self._max_attributes)
        return dropped

    def _warn(self, name: str, message: str, detail: object) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(message, name, detail)


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
