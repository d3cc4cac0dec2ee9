"""Ranges as spans of the protocol: an ended range, its plain values, its fields; and requests of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags

import monitel
from monitel_otel import RangeAttributes, of_track
from monitel_otlp.attributes import key_values, plain_attributes, readable, write_attributes
from monitel_otlp.open_request import OpenRequest, Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.profiler.ranges import Track
    from monitel_otlp.attributes import Plain
    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.traces.span_queue import Ended

_INTERNAL = Span.SPAN_KIND_INTERNAL
_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)

# Trace id, span id, parent's id, flags, name, start and end in Unix ns, step, thread id and name, unfinished,
# attributes, synthetic.
PlainSpan = tuple[
    bytes, bytes, bytes, int, str, int, int, "int | None", "tuple[int, str] | None", bool, "dict[str, Plain]", bool
]


class RangeMapping:
    """Turns ranges that have ended into spans.

    The messages are filled directly: the SDK's span classes and their encoder take three times as long.
    """

    def __init__(self) -> None:
        self._attributes = RangeAttributes()

    def plain(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> PlainSpan:
        """Return an ended range as exact built-in values.

        Args:
            ended: The range with the ids of its span.
            attributes: Of a span that the pipeline made itself, a fold or a step; None for a range of the application.
        """
        ids, name, start_ns, end_ns, found, args = ended
        step, track, unfinished = None, None, False
        more: dict[str, Plain] = {}
        if found is not None:
            step = found.step
            track = _plain_track(found.track)
            unfinished = found.end_ns != end_ns
            if args is not None:
                more = plain_attributes(self._attributes.of_args(name, args))
        if attributes is not None:
            more = {**more, **plain_attributes(attributes)}
        return (
            ids.trace_id,
            ids.span_id,
            ids.parent_id,
            _REMOTE if ids.remote else _LOCAL,
            name if type(name) is str and name.isascii() else readable(name),
            start_ns,
            end_ns,
            step,
            track,
            unfinished,
            more,
            attributes is not None,
        )

    @staticmethod
    def write(plain: PlainSpan, span: Any) -> None:
        """Fill a new span of the protocol."""
        trace_id, span_id, parent_id, flags, name, start_ns, end_ns, step, track, unfinished, attributes, _ = plain
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


class SpanRequests(Requests):
    """Puts spans of ranges into requests of at most 500 spans or about 1 MiB.

    Args:
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        resource: The resource as a message, serialized.
    """

    def __init__(
        self,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        resource: bytes,
    ) -> None:
        self.mapping = RangeMapping()
        open_request = OpenRequest("traces", resource, ("monitel", monitel.__version__), self.mapping.write, put)
        super().__init__("a range", "traces", open_request, lost)

    def add(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> None:
        """Encode one range; never raises.

        Args:
            ended: The range with the ids of its span.
            attributes: Of a span that the pipeline made itself, a fold or a step: it is not an item.
        """
        self._add(lambda: self.mapping.plain(ended, attributes), synthetic=attributes is not None)


@lru_cache(maxsize=256)
def _plain_track(track: Track) -> tuple[int, str]:
    attributes = of_track(track)
    return int(attributes["thread.id"]), readable(str(attributes["thread.name"]))  # type: ignore[arg-type]  # an int


@lru_cache(maxsize=256)
def _of_track(track: tuple[int, str]) -> tuple[KeyValue, ...]:
    thread_id, thread_name = track
    return tuple(key_values({"thread.id": thread_id, "thread.name": thread_name}))
