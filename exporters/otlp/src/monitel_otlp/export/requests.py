"""Requests: the items of a journal, encoded for a backend."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.forms import LogRecord
from monitel_otel.scope import SCOPE
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.messages.request import LEVELS, REQUESTS, write_scope
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.blackbox.record import Item
    from monitel_otlp.export.totals import Totals
    from monitel_otlp.export.windows import WindowPoints

_log = logging.getLogger("monitel.otlp")


class Encoded(NamedTuple):
    """A request.

    Attributes:
        body: The protobuf message; empty if none of the items can be encoded.
        records: Number of its points, log records or spans.
        lost: Number of items that cannot be encoded.
        draft: The totals after it; None where there are none.
    """

    body: bytes
    records: int
    lost: int
    draft: Any = None


class Encoder:
    """Encodes the items of one journal.

    Args:
        signal: The signal of the requests.
        resource: The resource and its schema, as the beginning of a message; see ``encode_resource()``.
        totals: The fold of the journal; None without one.
    """

    def __init__(self, signal: str, resource: bytes, totals: Totals | None = None) -> None:
        self.signal = signal
        self.totals = totals
        self._resource = resource
        self._failed = False

    def encode(self, items: Sequence[Item]) -> Encoded:
        """Encode some items, in order."""
        outer, scopes = LEVELS[self.signal][:2]
        message = REQUESTS[self.signal]()
        resource = getattr(message, outer).add()
        resource.ParseFromString(self._resource)
        draft = None if self.totals is None else self.totals.draft()
        records, lost = self._fill(getattr(resource, scopes), items, draft)
        return Encoded(message.SerializeToString() if records else b"", records, lost, draft)

    def follows(self, item: Item) -> int:  # noqa: ARG002  it follows all of them
        """Return the number of the first item of the signal's main journal that need not be sent before an item."""
        return sys.maxsize

    def _fill(self, scopes: Any, items: Sequence[Item], draft: Any) -> tuple[int, int]:
        """Add the records of some items to a list of scopes; return their number, and that of lost items."""
        raise NotImplementedError

    def _warn(self, noun: str) -> None:
        if not self._failed:
            self._failed = True
            _log.exception("%s cannot be encoded and is dropped (further ones are only counted)", noun)


class MetricsEncoder(Encoder):
    """Encodes windows and logged numbers.

    Each request has the current queue size of the pipeline: Prometheus orders samples by resource, so each request
    needs a sample with the current time.

    Args:
        resource: As for :class:`Encoder`.
        totals: The totals of the process.
        points: Writes windows and numbers.
        write_queue_size: Adds the queue size to a list of metrics.
        pause: Called between slices of work.
    """

    def __init__(
        self,
        resource: bytes,
        totals: Totals,
        points: WindowPoints,
        write_queue_size: Callable[[Any], object] = lambda _: None,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__("metrics", resource, totals)
        self._points = points
        self._write_queue_size = write_queue_size
        self._pause = pause

    def _fill(self, scopes: Any, items: Sequence[Item], draft: Any) -> tuple[int, int]:
        scope = scopes.add()
        write_scope(scope)
        found = self._points.write(items, draft, scope.metrics, self._pause)
        if found[0]:
            self._write_queue_size(scope.metrics)
        return found


class ReadingsEncoder(Encoder):
    """Puts readings, which are encoded already, into requests.

    Args:
        resource: As for :class:`Encoder`.
        write_queue_size: As for :class:`MetricsEncoder`.
    """

    def __init__(self, resource: bytes, write_queue_size: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__("metrics", resource)
        self._write_queue_size = write_queue_size

    def encode(self, items: Sequence[Item]) -> Encoded:
        """Encode some readings. The resource and their scopes are parts of one message."""
        message = REQUESTS[self.signal]()
        resource_metrics = message.resource_metrics.add()
        try:
            contents, numbers, _ = zip(*(item.value for item in items), strict=True)
            points = sum(numbers)
            resource_metrics.ParseFromString(b"".join((self._resource, *contents)))
            self._write_queue_size(resource_metrics.scope_metrics[0].metrics)
        except Exception:
            self._warn("a reading")
            return Encoded(b"", 0, count(items))
        return Encoded(message.SerializeToString(), points, 0)

    def follows(self, item: Item) -> int:
        """Return the number that the reading has."""
        return int(item.value[2])


class LogsEncoder(Encoder):
    """Encodes events, and records of Python's logging."""

    def __init__(self, resource: bytes) -> None:
        super().__init__("logs", resource)
        self._mapping = EventMapping()

    def _fill(self, scopes: Any, items: Sequence[Item], _draft: None) -> tuple[int, int]:
        of_scope: dict[str, Any] = {}
        records = lost = 0
        for item in items:
            try:
                plain = LogRecord(*item.value)
                found = of_scope.get(plain.scope)
                if found is None:
                    scope = scopes.add()
                    write_scope(scope, (plain.scope, "", "") if plain.scope else SCOPE)
                    found = of_scope[plain.scope] = scope.log_records
                record = found.add()
                try:
                    self._mapping.write(plain, record)
                except BaseException:
                    del found[-1]
                    raise
            except Exception:
                self._warn("an event")
                lost += item.items
            else:
                records += 1
        for index in range(len(scopes) - 1, -1, -1):
            if not scopes[index].log_records:
                del scopes[index]
        return records, lost


class SpansEncoder(Encoder):
    """Encodes spans of ranges."""

    def __init__(self, resource: bytes) -> None:
        super().__init__("traces", resource)
        self._mapping = RangeMapping()

    def _fill(self, scopes: Any, items: Sequence[Item], _draft: None) -> tuple[int, int]:
        scope = scopes.add()
        write_scope(scope)
        lost = 0
        for item in items:
            for plain in item.value:
                span = scope.spans.add()
                try:
                    self._mapping.write(plain, span)
                except Exception:
                    del scope.spans[-1]
                    self._warn("a range")
                    lost += 1
        return len(scope.spans), lost


def halves(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Split items, or the only record of several, in two."""
    half = len(items) // 2
    if half:
        return [*items[:half]], [*items[half:]]
    (item,) = items
    first, rest = item.split(item.items // 2)
    return [first], [rest]


def split_after(items: Sequence[Item], last: int) -> list[Sequence[Item]]:
    """Split items after the one with a number; one part if that is not among them, or is the last one."""
    for index, item in enumerate(items):
        if item.number <= last <= item.last and last < items[-1].last:
            if last == item.last:
                return [items[: index + 1], items[index + 1 :]]
            first, rest = item.split(last + 1 - item.number)
            return [[*items[:index], first], [rest, *items[index + 1 :]]]
    return [items]


def count(items: Sequence[Item]) -> int:
    """Return the number of items in some records."""
    return sum(item.items for item in items)
