"""Processors of the pipeline's providers: they put log records and spans into bounded queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from monitel_otlp._compat import LogRecordProcessor, ReadableLogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

    from monitel.bounded_queue import BoundedQueue
    from monitel_otlp._compat import ReadWriteLogRecord

_RECORD_BYTES, _SPAN_BYTES, _EVENT_BYTES = 512, 512, 256


class RecordQueue(LogRecordProcessor):
    """Queues the log records of a LoggerProvider.

    Args:
        queue: The queue.
        flush: Delivers all items within so many seconds.
    """

    def __init__(self, queue: BoundedQueue[ReadableLogRecord], flush: Callable[[float], bool]) -> None:
        self.queue = queue
        self._flush = flush

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue one record."""
        record = log_record.log_record
        self.queue.put(
            ReadableLogRecord(
                record,
                log_record.resource or Resource.get_empty(),
                log_record.instrumentation_scope,
                log_record.limits,
            ),
            _RECORD_BYTES + _size(record.body) + _size_of_values(record.attributes),
        )

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver all items."""
        return self._flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """Do nothing: the pipeline has its own shutdown."""


class SpanQueue(SpanProcessor):
    """Queues the ended and sampled spans of a TracerProvider.

    Args:
        queue: The queue.
        flush: Delivers all items within so many seconds.
    """

    def __init__(self, queue: BoundedQueue[ReadableSpan], flush: Callable[[float], bool]) -> None:
        self.queue = queue
        self._flush = flush

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is queued when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue one span."""
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            size = _SPAN_BYTES + _size_of_values(span.attributes)
            for event in span.events:
                size += _EVENT_BYTES + _size_of_values(event.attributes)
            self.queue.put(span, size)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver all items."""
        return self._flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """Do nothing: the pipeline has its own shutdown."""


def _size(value: Any) -> int:
    """Estimate the bytes of a value. Only text and bytes are measured; other values are small or rare."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return sum(map(_size, value.values())) if isinstance(value, dict) else 64


def _size_of_values(attributes: Mapping[str, Any] | None) -> int:
    return sum(map(_size, attributes.values())) if attributes else 0
