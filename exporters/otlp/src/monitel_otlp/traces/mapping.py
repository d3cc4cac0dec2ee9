"""Ranges as spans of the protocol."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, SpanFlags

import monitel
from monitel_otel import RangeAttributes, of_track
from monitel_otlp.attributes import key_values
from monitel_otlp.request import FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.profiler.ranges import Track
    from monitel_otlp.traces.span_queue import Ended, QueuedSpans
    from monitel_otlp.accounting import Tally

_log = logging.getLogger("monitel.otlp")

_SPANS_A_REQUEST = 500
_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


class SpanRequests:
    """Puts ranges that have ended into requests.

    The messages are made directly: the SDK's span classes and their encoder take three times as long.

    Args:
        queued: Where they wait.
        resource: Whose they are, as the protocol has it.
        put: Gets the finished requests.
        tally: Told what could not be encoded.
    """

    def __init__(
        self, queued: QueuedSpans, resource: Any, put: Callable[[FrozenRequest], None], tally: Tally
    ) -> None:
        self._queued = queued
        self._resource = resource
        self._put = put
        self._tally = tally
        self._attributes = RangeAttributes()
        self._request, self._spans = self._new_request()

    def export(self, limit: int) -> bool:
        """Encode up to ``limit`` spans.

        Returns:
            Whether there were any.
        """
        taken = self._queued.take(limit)
        for ended in taken:
            self._add(ended)
        return bool(taken)

    def finish(self, *, last: bool) -> None:
        """Encode what comes after them, and put what is not in a request yet into one."""
        for ended, attributes in self._queued.finish(last=last):
            self._add(ended, attributes)
        self._send()

    def _add(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> None:
        try:
            self._write(ended, self._spans.add(), attributes)
        except Exception:
            _log.exception("a range cannot be encoded and is dropped")
            del self._spans[-1]
            self._tally.dropped("traces", "encoding", 1)
        if len(self._spans) == _SPANS_A_REQUEST:
            self._send()

    def _write(self, ended: Ended, span: Any, attributes: Mapping[str, Any] | None) -> None:
        ids, name = ended.ids, ended.name
        span.trace_id = ids.trace_id
        span.span_id = ids.span_id
        span.parent_span_id = ids.parent_id
        span.flags = _REMOTE if ids.remote else _LOCAL
        span.name = name if name.isascii() else name.encode(errors="backslashreplace").decode()
        span.kind = Span.SPAN_KIND_INTERNAL
        span.start_time_unix_nano = ended.start_ns
        span.end_time_unix_nano = ended.end_ns
        if ended.range is not None:
            if ended.range.step is not None:
                span.attributes.add(key="training.step").value.int_value = ended.range.step
            span.attributes.extend(_of_track(ended.range.track))
            if ended.range.end_ns != ended.end_ns:
                span.attributes.add(key="monitel.unfinished").value.bool_value = True
            if ended.args is not None:
                span.attributes.extend(key_values(self._attributes.of_args(name, ended.args)))
        if attributes is not None:
            span.attributes.extend(key_values(attributes))

    def _send(self) -> None:
        if self._spans:
            body = self._request.SerializeToString()
            self._put(FrozenRequest("traces", body, len(self._spans), time.time_ns()))
            self._request, self._spans = self._new_request()

    def _new_request(self) -> tuple[Any, Any]:
        request = ExportTraceServiceRequest()
        scope = ScopeSpans(scope=InstrumentationScope(name="monitel", version=monitel.__version__))
        scopes = request.resource_spans.add(resource=self._resource).scope_spans
        scopes.append(scope)
        return request, scopes[0].spans


@lru_cache(maxsize=256)
def _of_track(track: Track) -> tuple[KeyValue, ...]:
    return tuple(key_values(of_track(track)))
