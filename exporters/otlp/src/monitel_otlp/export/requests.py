"""Requests: the items of journals, encoded for a backend, and held until their outcome is known.

A request is items ``i`` to ``j`` of one journal. It is split by items, too.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitel.blackbox.forms import LogRecord
from monitel_otel.scope import SCOPE
from monitel_otlp.messages.log_records import EventMapping
from monitel_otlp.messages.request import LEVELS, REQUESTS, Request, count, write_scope
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.blackbox.journal import Journal
    from monitel.blackbox.record import Item
    from monitel_otlp.metrics.totals import Totals
    from monitel_otlp.metrics.windows import WindowPoints

_log = logging.getLogger("monitel.otlp")

ITEMS_PER_REQUEST = 500
REQUEST_BYTES = 3_500_000  # gRPC servers accept 4 MiB
#: The journals whose items are sent to the endpoint of each signal, in their order.
JOURNALS_OF = {"metrics": ("metrics", "readings"), "logs": ("logs",), "traces": ("traces", "steps")}

_ATTEMPTS = 20  # at parts of a rejected request: halves of 500 items find one item in 19


class Encoder:
    """Encodes the items of one journal.

    Args:
        signal: The signal of the requests.
        resource: The resource and its schema, as the beginning of a message; see ``encode_resource()``.
        totals: The fold of the journal; None without one.
    """

    most = ITEMS_PER_REQUEST  #: Number of records in a request.

    def __init__(self, signal: str, resource: bytes, totals: Totals | None = None) -> None:
        self.signal = signal
        self.totals = totals
        self._resource = resource
        self._failed = False

    def encode(self, items: Sequence[Item]) -> Request:
        """Encode some items, in order."""
        outer, scopes = LEVELS[self.signal][:2]
        message = REQUESTS[self.signal]()
        resource = getattr(message, outer).add()
        resource.ParseFromString(self._resource)
        draft = None if self.totals is None else self.totals.draft()
        records, lost = self._fill(getattr(resource, scopes), items, draft)
        return Request(self.signal, message.SerializeToString() if records else b"", items, records, lost, draft)

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

    most = 1  # readings of one metric are not merged

    def __init__(self, resource: bytes, write_queue_size: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__("metrics", resource)
        self._write_queue_size = write_queue_size

    def encode(self, items: Sequence[Item]) -> Request:
        """Encode a reading. The resource and its scopes are parts of one message."""
        message = REQUESTS[self.signal]()
        resource_metrics = message.resource_metrics.add()
        try:
            content, points, _ = items[0].value
            resource_metrics.ParseFromString(self._resource + content)
            self._write_queue_size(resource_metrics.scope_metrics[0].metrics)
        except Exception:
            self._warn("a reading")
            return Request(self.signal, b"", items, lost=count(items))
        return Request(self.signal, message.SerializeToString(), items, points)

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
        for index in range(len(scopes) - 1, -1, -1) if lost else ():
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


@dataclass
class Search:
    """The search for the items that a backend rejects, in one request.

    Attributes:
        end: Number of the last item of the request.
        left: Attempts that are allowed.
        has_accepted: The backend has accepted some.
        has_rejected: Some are found.
    """

    end: int
    left: int = _ATTEMPTS
    has_accepted: bool = False
    has_rejected: bool = False


class Outbox:
    """The items of one journal that are being sent.

    They are held here until they are settled, because the journal may drop its oldest items meanwhile.

    Args:
        journal: The journal.
        encoder: Encodes its items.

    Attributes:
        request: The request that is being sent; None before :meth:`next`.
        search: The search for rejected items in it; None if none was rejected.
    """

    def __init__(self, journal: Journal, encoder: Encoder) -> None:
        self.journal = journal
        self.encoder = encoder
        self.request: Request | None = None  # of the first part
        self.search: Search | None = None
        self._parts: list[Sequence[Item]] = []  # of one read, in order

    @property
    def is_empty(self) -> bool:
        """True if everything is settled."""
        return self.journal.settled >= self.journal.next - 1

    def head(self) -> Item | None:
        """Return the next item; None if there is none, or the disk has to load it."""
        if not self._parts:
            read = self.journal.read(self.encoder.most)
            if not read:
                return None
            self._parts = _split_after(read, self.journal.sending)
        return self._parts[0][0]

    def next(self, before: int = sys.maxsize) -> Request | None:
        """Return the request to send now, of items before the one with a number.

        Returns:
            None if there are none, or the disk has to load them.
        """
        head = self.head()
        if head is None or head.number >= before:
            return None
        if self.request is None:
            self._parts[:1] = _split_after(self._parts[0], before - 1)
            if self.encoder.totals is not None:
                with self.journal.lock:
                    self.encoder.totals.pass_dropped(head.number)
            self.request = self.encoder.encode(self._parts[0])
            if len(self.request.body) > REQUEST_BYTES and self.split():
                return self.next(before)
        self.journal.sending = self.request.items[-1].last
        return self.request

    def split(self) -> bool:
        """Send the two halves of the items, one after the other, instead; return False for a single item."""
        items = self._parts[0]
        if half := len(items) // 2:
            self._parts[:1] = [items[:half], items[half:]]
        elif (only := items[0]).items > 1:
            self._parts[:1] = [[each] for each in only.split(only.items // 2)]
        else:
            return False
        self.request = None
        return True

    def settle(self, delivered: int, **dropped: int) -> None:
        """Note the outcome of the items that are sent now, in one step with the totals."""
        assert self.request is not None
        if self.request.lost:
            dropped["encoding"] = self.request.lost
        last = self.request.items[-1].last
        with self.journal.lock:
            if self.encoder.totals is not None:
                self.encoder.totals.commit(last, self.request.draft)
            self.journal.settle(last, delivered, **dropped)
        del self._parts[0]
        self.request = None
        if self.search is not None and last >= self.search.end:
            self.search = None

    def join(self) -> None:
        """Send what is left of a request with a rejected item at once."""
        if self.search is not None:
            number = sum(part[-1].last <= self.search.end for part in self._parts)
            self._parts[:number] = [[item for part in self._parts[:number] for item in part]]

    def give_back(self) -> None:
        """Send nothing more."""
        self._parts, self.request = [], None
        self.journal.give_back()


def _split_after(items: Sequence[Item], last: int) -> list[Sequence[Item]]:
    """Split items after the one with a number; one part if that is not among them, or is the last one."""
    for index, item in enumerate(items):
        if item.number <= last <= item.last and last < items[-1].last:
            if last == item.last:
                return [items[: index + 1], items[index + 1 :]]
            first, rest = item.split(last + 1 - item.number)
            return [[*items[:index], first], [rest, *items[index + 1 :]]]
    return [items]


def outboxes(
    journals: dict[str, Journal],
    resource: bytes,
    totals: Totals,
    points: WindowPoints,
    *,
    write_queue_size: Callable[[Any], object] = lambda _: None,
    pause: Callable[[], object] = lambda: None,
) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, with encoders; the arguments are theirs."""
    encoders = {
        "metrics": MetricsEncoder(resource, totals, points, write_queue_size, pause),
        "readings": ReadingsEncoder(resource, write_queue_size),
        "logs": LogsEncoder(resource),
        "traces": SpansEncoder(resource),
        "steps": SpansEncoder(resource),
    }
    return {signal: [Outbox(journals[name], encoders[name]) for name in names] for signal, names in JOURNALS_OF.items()}


def next_of(outboxes: Sequence[Outbox]) -> Outbox | None:
    """Return the outbox with the next request of a signal; None if there is none, or the disk has to load it.

    The journals beside the first one follow its items that were recorded before theirs: Prometheus takes the data of a
    process in the order of time.
    """
    main, *beside = outboxes
    before = sys.maxsize
    for each in beside:
        head = each.head()
        if head is not None:
            before = min(before, each.encoder.follows(head))
        elif each.journal.loading is not None:
            return None
    if main.next(before) is not None:
        return main
    if main.journal.loading is not None and main.journal.settled + 1 < before:
        return None
    return next((each for each in beside if each.next() is not None), None)
