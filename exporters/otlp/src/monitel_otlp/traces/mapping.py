"""Ranges as spans of the protocol: an ended range, its plain values, its fields.

The messages are filled directly, because the span classes of the SDK and their encoder take three times as long.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from monitel.attributes import escape_surrogates
from monitel_otel.spans import RangeAttributes, of_track
from monitel_otlp._compat import span_limits
from monitel_otlp.messages.attributes import Limits, key_values, plain_attributes, write_attributes
from monitel_otlp.messages.request import Encoder, write_scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.record import Item
    from monitel.profiler.ranges import Track
    from monitel_otlp.messages.attributes import Plain
    from monitel_otlp.traces.span_queue import Ended

_MOST_OWN = 4  # attributes with separate fields: step, thread (two), unfinished
_INTERNAL = Span.SPAN_KIND_INTERNAL
_ERROR = Status.STATUS_CODE_ERROR
_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)

# Trace id, span id, parent's id, flags, name, start and end in Unix ns, step, thread id and name, unfinished,
# attributes, left by an exception, number of dropped attributes.
PlainSpan = tuple[Any, ...]
_Thread = tuple[int, str]


class RangeMapping:
    """Describes ended ranges by plain values, within the limits of attributes of the SDK's variables."""

    def __init__(self) -> None:
        self._attributes = RangeAttributes()
        limits = span_limits()
        self._limits = Limits("range", limits.max_span_attributes, limits.max_span_attribute_length)

    def plain(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> PlainSpan:
        """Return an ended range as exact built-in values.

        ``attributes`` are those of a span that the pipeline has made itself: a folded span or a step.
        """
        ids, name, start_ns, end_ns, found, args = ended
        step, track, unfinished, failed = None, None, False, False
        more: dict[str, Plain] = {}
        if found is not None:
            step = found.step
            track = _plain_track(found.track)
            unfinished = found.end_ns != end_ns
            if args is not None:
                more = plain_attributes(self._attributes.of_args(name, args))
            if found.error_type is not None:
                failed, more = True, {**more, "error.type": escape_surrogates(found.error_type)}
        if attributes is not None:
            more = {**more, **plain_attributes(attributes)}
        dropped = 0
        if self._limits.exceeded(len(more) + _MOST_OWN):
            more = {**_own(step, track, unfinished), **more}
            step, track, unfinished = None, None, False
            dropped = self._limits.apply(name, more)
        name = (name if type(name) is str and name.isascii() else escape_surrogates(name)) or "unnamed"
        head = ids.trace_id, ids.span_id, ids.parent_id, _REMOTE if ids.remote else _LOCAL, name, start_ns, end_ns
        return *head, step, track, unfinished, more, failed, dropped


class SpansEncoder(Encoder):
    """Writes spans."""

    def __init__(self, resource: bytes) -> None:
        super().__init__("traces", resource)

    def _write(self, items: Sequence[Item], resource: Any, _draft: None) -> tuple[int, int]:
        scope = resource.scope_spans.add()
        write_scope(scope)
        lost = 0
        for item in items:
            for plain in item.value:
                span = scope.spans.add()
                try:
                    self._write_span(plain, span)
                except Exception:
                    del scope.spans[-1]
                    self._warn("a range")
                    lost += 1
        return len(scope.spans), lost

    @staticmethod
    def _write_span(plain: PlainSpan, span: Any) -> None:
        trace_id, span_id, parent_id, flags, name, start_ns, end_ns = plain[:7]
        step, track, unfinished, attributes, failed, dropped = plain[7:]
        span.trace_id = trace_id
        span.span_id = span_id
        span.parent_span_id = parent_id
        span.flags = flags
        span.name = name
        span.kind = _INTERNAL
        span.start_time_unix_nano = start_ns
        span.end_time_unix_nano = end_ns
        if step is not None:
            pair = span.attributes.add()
            pair.key = "training.step"
            pair.value.int_value = step
        if track is not None:
            span.attributes.extend(_of_track(track))
        if unfinished:
            pair = span.attributes.add()
            pair.key = "monitel.unfinished"
            pair.value.bool_value = True
        if attributes:
            write_attributes(span.attributes, attributes)
        if failed:
            span.status.code = _ERROR
        if dropped:
            span.dropped_attributes_count = dropped


def _own(step: int | None, track: _Thread | None, unfinished: bool) -> dict[str, Plain]:
    """Return the attributes with separate fields in a plain span, in the order in which they are written."""
    found: dict[str, Plain] = {} if step is None else {"training.step": step}
    if track is not None:
        found |= {"thread.id": track[0], "thread.name": track[1]}
    return {**found, "monitel.unfinished": True} if unfinished else found


@lru_cache(maxsize=256)
def _plain_track(track: Track) -> _Thread:
    attributes = of_track(track)
    return int(attributes["thread.id"]), escape_surrogates(str(attributes["thread.name"]))  # type: ignore[arg-type]  # an int


@lru_cache(maxsize=256)
def _of_track(track: _Thread) -> tuple[KeyValue, ...]:
    thread_id, thread_name = track
    return tuple(key_values({"thread.id": thread_id, "thread.name": thread_name}))
