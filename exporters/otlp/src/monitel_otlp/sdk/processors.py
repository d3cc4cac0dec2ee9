"""What comes from the caller's threads, in bounded queues until the delivery thread encodes it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from monitel_otlp.sdk._compat import LogRecordProcessor, ReadableLogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

    from monitel_otlp.sdk._compat import ReadWriteLogRecord

_Item = TypeVar("_Item")


class BoundedQueue(Generic[_Item]):
    """Items in order of arrival; the oldest is dropped when it is full, and counted.

    Args:
        limit: Items that it holds.
    """

    def __init__(self, limit: int) -> None:
        self._dropped = 0
        self._limit = limit
        self._items: deque[_Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _Item) -> None:
        """Take one item: an append, nothing else."""
        if len(self._items) >= self._limit:
            self.take(1)
            self._dropped += 1
        self._items.append(item)

    def take_dropped(self) -> int:
        """Items dropped since this was last asked."""
        dropped = self._dropped
        self._dropped -= dropped
        return dropped

    def take(self, limit: int) -> list[_Item]:
        """Up to ``limit`` items, oldest first."""
        taken: list[_Item] = []
        while len(taken) < limit:
            try:
                taken.append(self._items.popleft())
            except IndexError:  # another thread was quicker
                break
        return taken


class RecordProcessor(LogRecordProcessor):
    """Queues the log records of a LoggerProvider."""

    def __init__(self, limit: int, flush: Callable[[float], bool]) -> None:
        self.queue: BoundedQueue[ReadableLogRecord] = BoundedQueue(limit)
        self._flush = flush

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue one record."""
        self.queue.put(
            ReadableLogRecord(
                log_record.log_record,
                log_record.resource or Resource.get_empty(),
                log_record.instrumentation_scope,
                log_record.limits,
            )
        )

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver everything."""
        return self._flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """The pipeline shuts down, not the provider."""


class SpanQueue(SpanProcessor):
    """Queues the ended spans of a TracerProvider, those that were sampled."""

    def __init__(self, limit: int, flush: Callable[[float], bool]) -> None:
        self.queue: BoundedQueue[ReadableSpan] = BoundedQueue(limit)
        self._flush = flush

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span is queued when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue one span."""
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            self.queue.put(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver everything."""
        return self._flush(timeout_millis / 1e3)

    def shutdown(self) -> None:
        """The pipeline shuts down, not the provider."""


def drain(queue: BoundedQueue[_Item], export: Callable[[Sequence[_Item]], object], batch: int = 512) -> None:
    """Hand everything queued to ``export``, a batch at a time."""
    while items := queue.take(batch):
        export(items)
