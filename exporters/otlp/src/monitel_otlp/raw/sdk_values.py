"""Conversion of the SDK's log records, spans and resources to plain values, and back."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from monitel_otlp._compat import LogRecord, ReadableLogRecord, SeverityNumber
from monitel_otlp.messages.attributes import plain_attributes, plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import SupportsIndex

    from monitel_otlp.messages.attributes import Plain

PlainAttributes = tuple["dict[str, Plain]", int]


def plain_bounded(attributes: Mapping[str, Any] | None) -> PlainAttributes:
    """Return attributes and the number of attributes that the SDK has dropped."""
    return plain_attributes(attributes), attributes.dropped if isinstance(attributes, BoundedAttributes) else 0


def bounded(plain: dict[str, Any], dropped: int) -> dict[str, Any] | BoundedAttributes:
    """Return attributes for a new object of the SDK."""
    if not dropped:
        return plain
    attributes = BoundedAttributes(attributes=plain, immutable=False)
    attributes.dropped = dropped
    return attributes


def text(value: str | None) -> str | None:
    """Return text as an exact str."""
    return value if value is None or type(value) is str else str.__str__(value)


def integer(value: SupportsIndex | None) -> int | None:
    """Return a whole number as an exact int."""
    return value if value is None or type(value) is int else int(index(value))


class Owners:
    """Assigns numbers to the resources and scopes of records, for the header of a raw segment."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._owners: list[Any] = []  # references that keep the ids valid
        self.plain: list[Any] = []

    def number(self, owner: Resource | InstrumentationScope | None) -> int:
        """Return the number of a resource or a scope, the same for the same object."""
        number = self._numbers.get(id(owner))
        if number is None:
            self.plain.append(_plain_owner(owner))
            number = self._numbers[id(owner)] = len(self._owners)
            self._owners.append(owner)
        return number


def _plain_owner(owner: Resource | InstrumentationScope | None) -> tuple[Any, ...] | None:
    if owner is None:
        return None
    attributes = plain_attributes(owner.attributes)
    if isinstance(owner, Resource):
        return "resource", attributes, text(owner.schema_url)
    return "scope", attributes, text(owner.schema_url), text(owner.name), text(owner.version)


def owner_of(plain: tuple[Any, ...] | None) -> Any:
    """Return a resource, a scope, or None, from its plain values."""
    if plain is None:
        return None
    kind, attributes, schema_url, *more = plain
    if kind == "resource":
        return Resource(attributes, schema_url)
    name, version = more
    return InstrumentationScope(name, version, schema_url, attributes)


def plain_record(record: ReadableLogRecord, owners: Owners) -> tuple[Any, ...]:
    """Return a log record as exact built-in values.

    Raises:
        TypeError: The protocol cannot hold its body.
    """
    inner = record.log_record
    severity = inner.severity_number
    attributes, dropped = plain_bounded(inner.attributes)
    return (
        owners.number(record.resource),
        owners.number(record.instrumentation_scope),
        integer(inner.timestamp),
        integer(inner.observed_timestamp),
        integer(inner.trace_id),
        integer(inner.span_id),
        int(inner.trace_flags),
        text(inner.severity_text),
        None if severity is None else int(severity.value),
        plain_value(inner.body),
        attributes,
        dropped,
        text(inner.event_name),
    )


def record_of(plain: Sequence[Any], owners: Sequence[Any]) -> ReadableLogRecord:
    """Return a log record from its plain values."""
    resource, scope, timestamp, observed, trace_id, span_id, flags, *more = plain
    severity_text, severity, body, attributes, dropped, event_name = more
    record = LogRecord(
        timestamp=timestamp,
        observed_timestamp=observed,
        severity_text=severity_text,
        severity_number=None if severity is None else SeverityNumber(severity),
        body=body,
        attributes=bounded(attributes, dropped),
        event_name=event_name,
    )
    record.observed_timestamp = observed
    record.trace_id, record.span_id, record.trace_flags = trace_id, span_id, TraceFlags(flags)
    return ReadableLogRecord(record, owners[resource], owners[scope])


_Context = tuple[Any, Any, bool]  # trace id, span id, remote


def plain_span(span: ReadableSpan, owners: Owners) -> tuple[Any, ...]:
    """Return an ended span as exact built-in values.

    Raises:
        Exception: A field of the span has a wrong type.
    """
    attributes, _ = plain_bounded(span.attributes)
    status = span.status
    events, links = span.events, span.links
    context: Any = span.get_span_context()
    state = context.trace_state
    return (
        owners.number(span.resource),
        owners.number(span.instrumentation_scope),
        text(span.name),
        _plain_context(context),
        int(context.trace_flags),
        [(text(key), text(value)) for key, value in state.items()] if state else None,
        _plain_context(span.parent),
        span.kind.value,
        integer(span.start_time),
        integer(span.end_time),
        attributes,
        span.dropped_attributes,
        [_plain_event(event) for event in events] if events else [],
        span.dropped_events,
        [(_plain_context(link.context), *plain_bounded(link.attributes)) for link in links] if links else [],
        span.dropped_links,
        (status.status_code.value, text(status.description)),
    )


def span_of(plain: Sequence[Any], owners: Sequence[Any]) -> ReadableSpan:
    """Return an ended span from its plain values."""
    resource, scope, name, context, flags, state, parent, kind, start_time, *more = plain
    end_time, attributes, dropped, events, dropped_events, links, dropped_links, status = more
    return ReadableSpan(
        name=name,
        context=_context_of(context, flags, state),
        parent=_context_of(parent),
        resource=owners[resource],
        attributes=bounded(attributes, dropped),
        events=_list_of([Event(name, bounded(*of_event), at) for name, at, *of_event in events], dropped_events),
        links=_list_of([Link(_context_of(to), bounded(*of_link)) for to, *of_link in links], dropped_links),
        kind=SpanKind(kind),
        status=Status(StatusCode(status[0]), status[1]),
        start_time=start_time,
        end_time=end_time,
        instrumentation_scope=owners[scope],
    )


def _plain_event(event: Event) -> tuple[Any, ...]:
    return text(event.name), integer(event.timestamp), *plain_bounded(event.attributes)


def _plain_context(context: SpanContext | None) -> _Context | None:
    """Return the fields of a parent or a link that the protocol has."""
    if context is None:
        return None
    trace_id, span_id = context.trace_id, context.span_id
    if type(trace_id) is not int or type(span_id) is not int:
        return integer(trace_id), integer(span_id), bool(context.is_remote)
    return trace_id, span_id, bool(context.is_remote)


def _context_of(plain: _Context | None, flags: int = 0, state: list[tuple[str, str]] | None = None) -> Any:
    if plain is None:
        return None
    trace_id, span_id, remote = plain
    return SpanContext(trace_id, span_id, remote, TraceFlags(flags), TraceState(state) if state else None)


def _list_of(found: list[Any], dropped: int) -> Sequence[Any]:
    if not dropped:
        return found
    bounded_list = BoundedList.from_seq(len(found), found) if found else BoundedList(0)
    bounded_list.dropped = dropped
    return bounded_list
