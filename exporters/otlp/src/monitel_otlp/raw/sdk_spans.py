"""Conversion of the SDK's spans to plain values, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from monitel_otlp.raw.sdk_values import bounded, integer, plain_bounded, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.raw.sdk_values import Owners

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
