"""Events as log records of the protocol: a queued event, its plain values, its fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import get_current_span

from monitel_otlp.attributes import readable, write_attributes
from monitel_otlp.logs.timestamps import Timestamps

if TYPE_CHECKING:
    from opentelemetry.context import Context

    import monitel
    from monitel_otlp.attributes import Plain
    from monitel_otlp.sdk._compat import LogRecordLimits
    from monitel_otlp.traces.span_queue import Identified

_log = logging.getLogger("monitel.otlp")

_SAMPLED = 1  # in the flags of a trace

PlainEvent = tuple[int, int, int, str, "dict[str, Plain]", int, bytes, bytes, int]


class LoggedEvent(NamedTuple):
    """One event as a caller's thread queues it.

    Attributes:
        event: The event itself; its data is read when it is encoded.
        step: Training step when the event was logged.
        context: OpenTelemetry context when the event was logged.
        inside: The range that ran and becomes a span; it comes before the context's span.
        observed_ns: Time of logging, Unix ns.
    """

    event: monitel.Event
    step: int | None
    context: Context
    inside: Identified | None
    observed_ns: int


class EventMapping:
    """Turns events into log records, with the same fields as :class:`monitel_otel.Records` and the SDK would give.

    An attribute that the protocol cannot hold is left out, attributes beyond the limits are cut as the SDK does, and
    both are logged once for each event name.

    Args:
        limits: Of attributes, as the SDK reads them from its variables.
    """

    def __init__(self, limits: LogRecordLimits) -> None:
        self._most = limits.max_log_record_attributes
        self._longest = limits.max_log_record_attribute_length
        self._ns = Timestamps().ns
        self._warned: set[str] = set()

    def plain(self, item: tuple[Any, ...]) -> PlainEvent:
        """Return a queued event as exact built-in values.

        Args:
            item: A :class:`LoggedEvent`, or a tuple of its fields.
        """
        event, step, context, inside, observed_ns = item
        name = readable(event.name)
        attributes: dict[str, Plain] = {}
        if step is not None:
            self._set(attributes, name, "training.step", step)
        for key, value in dict(event.data).items():
            kind = type(value)
            if type(key) is str and key and key.isascii() and (kind is float or (kind is str and value.isascii())):
                attributes[key] = value
            else:
                self._set(attributes, name, key, value)
        dropped = self._cut(name, attributes)
        ids = _ids(context) if inside is None else (inside.trace_id, inside.span_id, _SAMPLED)
        time_ns = self._ns(event.timestamp)
        return time_ns, observed_ns, int(event.severity), name, attributes, dropped, *ids

    @staticmethod
    def write(plain: PlainEvent, record: Any) -> None:
        """Fill a new log record of the protocol."""
        time_ns, observed_ns, severity, name, attributes, dropped, trace_id, span_id, flags = plain
        record.time_unix_nano = time_ns
        record.observed_time_unix_nano = observed_ns
        record.severity_number = severity
        record.event_name = name
        record.body.string_value = name
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

    def _set(self, attributes: dict[str, Plain], name: str, key: object, value: object) -> None:
        """Set an attribute from a value of any type, or leave it out as :class:`monitel_otel.Records` does."""
        if isinstance(key, str) and key:
            if isinstance(value, bool):
                attributes[readable(key)] = value
                return
            if isinstance(value, int) and -(2**63) <= value < 2**63:
                attributes[readable(key)] = int.__int__(value)
                return
            if isinstance(value, str):
                attributes[readable(key)] = readable(value)
                return
            if isinstance(value, float):
                attributes[readable(key)] = float.__float__(value)
                return
        self._warn(name, "event %r: %r cannot be an attribute and is left out", key)

    def _cut(self, name: str, attributes: dict[str, Plain]) -> int:
        """Keep the newest attributes within the limits, and return the number of those that are dropped."""
        if self._longest is not None:
            for key, value in attributes.items():
                if type(value) is str and len(value) > self._longest:
                    attributes[key] = value[: self._longest]
                    self._warn(name, "event %r: a text longer than %d characters is cut", self._longest)
        if self._most is None or len(attributes) <= self._most:
            return 0
        dropped = len(attributes) - self._most
        for key in list(attributes)[:dropped]:
            del attributes[key]
        self._warn(name, "event %r: attributes beyond the limit of %d are dropped, the first ones", self._most)
        return dropped

    def _warn(self, name: str, message: str, detail: object) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(message, name, detail)


def _ids(context: Context | None) -> tuple[bytes, bytes, int]:
    """Return trace id, span id and flags of a context's span; empty where there is none."""
    if not context:
        return b"", b"", 0
    span = get_current_span(context).get_span_context()
    trace_id, span_id = span.trace_id, span.span_id
    return (
        trace_id.to_bytes(16, "big") if trace_id else b"",
        span_id.to_bytes(8, "big") if span_id else b"",
        int(span.trace_flags),
    )
