"""Ranges as spans of the protocol, in which form they are in the journals.

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

_MOST_OWN = 4  # attributes: step, thread (two), unfinished
_INTERNAL = Span.SPAN_KIND_INTERNAL
_ERROR = Status.STATUS_CODE_ERROR
_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)


class RangeMapping:
    """Encodes ended ranges as spans, within the limits of attributes of the SDK's variables."""

    def __init__(self) -> None:
        self._attributes = RangeAttributes()
        limits = span_limits()
        self._limits = Limits("range", limits.max_span_attributes, limits.max_span_attribute_length)

    def encode(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> bytes:
        """Return a range, or a fold or step with ``attributes``, as a serialized span."""
        ids, name, start_ns, end_ns, found, args = ended
        span = Span()
        span.trace_id = ids.trace_id
        span.span_id = ids.span_id
        span.parent_span_id = ids.parent_id
        span.flags = _REMOTE if ids.remote else _LOCAL
        span.name = (name if type(name) is str and name.isascii() else escape_surrogates(name)) or "unnamed"
        span.kind = _INTERNAL
        span.start_time_unix_nano = start_ns
        span.end_time_unix_nano = end_ns
        more: dict[str, Plain] = {} if args is None else plain_attributes(self._attributes.of_args(name, args))
        own: tuple[Any, ...] = ()
        if found is not None:
            own = found.step, found.track, found.end_ns != end_ns
            if found.error_type is not None:
                span.status.code = _ERROR
                more = {**more, "error.type": escape_surrogates(found.error_type)}
        if attributes is not None:
            more = {**more, **plain_attributes(attributes)}
        if self._limits.exceeded(len(more) + _MOST_OWN):
            more = {**(_own(*own) if own else {}), **more}
            if dropped := self._limits.apply(name, more):
                span.dropped_attributes_count = dropped
        elif own:
            span.attributes.extend(_own_fields(*own))
        if more:
            write_attributes(span.attributes, more)
        return span.SerializeToString()


def _own(step: int | None, track: Track, unfinished: bool) -> dict[str, Plain]:
    found: dict[str, Plain] = {} if step is None else {"training.step": step}
    found |= plain_attributes(of_track(track))
    return {**found, "monitel.unfinished": True} if unfinished else found


@lru_cache(maxsize=256)
def _own_fields(step: int | None, track: Track, unfinished: bool) -> tuple[KeyValue, ...]:
    return tuple(key_values(_own(step, track, unfinished)))


class SpansEncoder(Encoder):
    """Puts spans, which are encoded already, into requests."""

    def __init__(self, resource: bytes) -> None:
        super().__init__("traces", resource)

    def _write(self, items: Sequence[Item], resource: Any, _draft: None) -> int:
        scope = resource.scope_spans.add()
        write_scope(scope)
        for item in items:
            for content in item.value:
                scope.spans.add().ParseFromString(content)
        return len(scope.spans)
