"""The queue of the unanswered requests of one signal, in memory and on disk."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from monitel_otlp.accounting import EXIT, UNACCOUNTED, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.delivery.disk import Disk
    from monitel_otlp.messages.request import FrozenRequest

_log = logging.getLogger("monitel.otlp")

_MEMORY_BYTES = 64 << 20
_OLDEST_IN_MEMORY = 60.0  # seconds
_DISK_PAUSE = 30.0  # seconds after a failed write


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue.

    Attributes:
        request: The request.
        number: Ascending number of the request.
        since: Monotonic time of its arrival, seconds.
        on_disk: It is the oldest request of the spool, and remains there until it is settled.
        key: Its key in the black box; None if it is not there.
    """

    request: FrozenRequest
    number: int = 0
    since: float = 0.0
    on_disk: bool = False
    key: str | None = None


class Kept(Protocol):
    """Keeps requests in a place that outlives the process."""

    @property
    def is_open(self) -> bool:
        """True while there is such a place."""

    def keep(self, key: str, request: FrozenRequest) -> str | None:
        """Keep a request; return its key, or None if that is not possible."""

    def forget(self, key: str | None) -> None:
        """Remove a request. Idempotent."""

    def close(self) -> None:
        """Remove everything, because nothing is only there. Idempotent."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        delivered: Number of items that the backend has acknowledged.
        synthetic: Number of acknowledged spans that the pipeline has made itself.
        dropped: Lost items by reason.
        parts: Requests that replace it.
    """

    delivered: int = 0
    synthetic: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    parts: Sequence[FrozenRequest] = ()


class RetryQueue:
    """A FIFO of requests: first the request that is being sent, then requests on disk, then requests in memory.

    Memory holds 64 MiB. Requests beyond that limit, requests older than a minute, and all requests of an offline signal
    are written to the spool. If the disk does not accept them, the oldest requests are dropped and counted as ``disk``.
    All counters change under the lock of the accounting. All disk operations run in the disk thread.

    Args:
        signal: The signal of the requests.
        accounting: Counts the items.
        disk: The disk thread.
        progress: Called when a request is settled or on disk.
        online: False if the signal has no endpoint, so that all requests go to the spool.
        stored: The spool already contains requests.
        kept: The black box, from which a request is removed with its outcome. Requests for which it has no room are
            written to the spool.
    """

    def __init__(
        self,
        signal: str,
        accounting: Accounting,
        disk: Disk,
        progress: Callable[[], object],
        *,
        online: bool,
        stored: bool = False,
        kept: Kept | None = None,
    ) -> None:
        self._kept = kept
        self._exposed = False  # a request in memory is not in the black box
        self.signal = signal
        self._accounting = accounting
        self._lock = accounting.lock
        self._disk = disk
        self._progress = progress
        self._online = online
        self._front: deque[Waiting] = deque()  # the request that is being sent, or parts of a split request
        self._memory: deque[Waiting] = deque()
        self._memory_bytes = 0
        self._put_number = 0
        self._sending = False
        self.stored = stored
        self._spilling: Waiting | None = None
        self._spill_wanted = False
        self._disk_not_before = 0.0
        self.over = False

    @property
    def last_number(self) -> int:
        """The number of the newest request."""
        return self._put_number

    def put(self, request: FrozenRequest, key: str | None = None) -> None:
        """Add a request of the encoder, with its key in the black box."""
        with self._lock:
            if self.over:
                self._accounting.drop(self.signal, Stage.ENCODING, EXIT, request.items)
                return
            self._accounting.move(self.signal, Stage.ENCODING, Stage.MEMORY, request.items)
            self._put_number += 1
            self._memory.append(Waiting(request, self._put_number, time.monotonic(), key=key))
            self._expose(key, request)
            self._memory_bytes += len(request.body)
            self._drop_beyond(2 * _MEMORY_BYTES)

    def oldest(self) -> Waiting | None:
        """Return the request to send next. Call :meth:`settle` or :meth:`keep` afterwards."""
        with self._lock:
            if (found := self._next_in_memory(disk_first=True)) is not None:
                return found
        try:
            stored = self._disk.call(self._read_oldest) if self._is_on_disk() else None
        except Exception:
            stored = None  # continue with the requests in memory, because the file system may hang
        with self._lock:
            if stored is None or self._front:
                return self._next_in_memory(disk_first=False)
            self._front.append(Waiting(stored, on_disk=True))
            return self._begin()

    def keep(self) -> None:
        """Keep the request that was being sent, to retry it."""
        with self._lock:
            self._sending = False
            if self._front and self._front[0].on_disk:
                self._front.popleft()  # it is still on disk, and will be read again

    def settle(self, waiting: Waiting, outcome: Outcome) -> None:
        """Remove a request, and count its items by outcome.

        If the queue has ended in the meantime, nothing happens: the request is in the spool, and may arrive twice.
        """
        with self._lock:
            self._sending = False
            if self.over or not self._front or self._front[0] is not waiting:
                return
            self._front.popleft()
            if not waiting.on_disk:
                self._memory_bytes -= len(waiting.request.body)
                self._count(waiting, outcome, Stage.MEMORY)
                self._progress()
                self._forget(waiting)
                return
        self._disk.submit(lambda: self._settle_on_disk(waiting, outcome))

    def is_empty(self, number: int | None = None) -> bool:
        """Return True if no request up to this number is left; for an offline signal, if none is left in memory."""
        with self._lock:
            if self._online and self.stored:
                return False
            waiting = [*self._front, *([self._spilling] if self._spilling else []), *list(self._memory)[:1]]
            return not any(number is None or each.number <= number for each in waiting)

    def spill_if_due(self) -> None:
        """Write requests to disk: all if offline, else the requests beyond the limits of size and age."""
        with self._lock:
            now = time.monotonic()
            oldest = self._front or self._memory
            late = bool(oldest) and now - oldest[0].since > _OLDEST_IN_MEMORY
            due = not self._online or late or self._exposed or self._memory_bytes > _MEMORY_BYTES
            if not due or not oldest or self._spill_wanted or self.over or now < self._disk_not_before:
                return
            self._spill_wanted = True
            self._exposed = False
        self._disk.submit(self._spill)

    def end(self) -> None:
        """Return no further requests, and ignore the answer to a current attempt. Idempotent."""
        with self._lock:
            self.over = True

    def spill_rest(self) -> None:
        """Write all remaining requests to the spool. Runs in the disk thread, after :meth:`end`."""
        with self._lock:
            self._sending = False
        self._spill()
        self.drop_rest("disk")

    def drop_rest(self, reason: str) -> None:
        """Drop all requests in memory."""
        with self._lock:
            rest = [*self._front, *([self._spilling] if self._spilling else []), *self._memory]
            self._accounting.drop(
                self.signal, Stage.MEMORY, reason, sum(each.request.items for each in rest if not each.on_disk)
            )
            self._front.clear()
            self._memory.clear()
            self._spilling = None
            self._memory_bytes = 0
            for each in rest:
                self._forget(each)

    def _expose(self, key: str | None, request: FrozenRequest) -> None:
        """Write the requests in memory to the spool soon, because the black box has no room for this one."""
        self._exposed |= key is None and not request.idle and self._kept is not None and self._kept.is_open

    def _forget(self, waiting: Waiting) -> None:
        if self._kept is not None:
            self._kept.forget(waiting.key)

    def count_lost(self) -> None:
        """Count the items that the spool has lost. Runs in the disk thread."""
        with self._lock:
            for reason, items in self._disk.spool.take_lost(self.signal).items():
                self._accounting.drop(self.signal, Stage.DISK, reason, items)

    def _is_on_disk(self) -> bool:
        return self.stored or self._spilling is not None

    def _next_in_memory(self, *, disk_first: bool) -> Waiting | None:
        if self.over or not self._online:
            return None
        if self._front:
            return self._begin()
        if not self._memory or (disk_first and self._is_on_disk()):
            return None
        self._front.append(self._memory.popleft())
        return self._begin()

    def _begin(self) -> Waiting:
        self._sending = True
        return self._front[0]

    def _count(self, waiting: Waiting, outcome: Outcome, source: Stage) -> None:
        """Count the items of a settled request, and insert its parts."""
        items = waiting.request.items - outcome.delivered - sum(outcome.dropped.values())
        items -= sum(part.items for part in outcome.parts)
        if items:
            _log.error("bug in monitel: %d items of a request of %s are unaccounted for", items, self.signal)
            self._accounting.drop(self.signal, source, UNACCOUNTED, items)
        self._accounting.deliver(self.signal, source, outcome.delivered, outcome.synthetic)
        for reason, dropped in outcome.dropped.items():
            self._accounting.drop(self.signal, source, reason, dropped)
        for number, part in reversed(list(enumerate(outcome.parts, 1))):
            self._accounting.move(self.signal, source, Stage.MEMORY, part.items)
            key = None
            if self._kept is not None and waiting.key is not None:
                key = self._kept.keep(f"{waiting.key}.{number}", part)
            self._expose(key, part)
            self._front.appendleft(Waiting(part, waiting.number, time.monotonic(), key=key))
            self._memory_bytes += len(part.body)

    def _read_oldest(self) -> FrozenRequest | None:
        stored = self._disk.spool.oldest(self.signal)
        with self._lock:
            self.stored = stored is not None
        self.count_lost()
        return stored

    def _settle_on_disk(self, waiting: Waiting, outcome: Outcome) -> None:
        self._disk.spool.remove_oldest(self.signal)
        with self._lock:
            self._count(waiting, outcome, Stage.DISK)
        self.count_lost()
        self._progress()

    def _spill(self) -> None:
        """Write requests to the spool, oldest first. Runs in the disk thread."""
        spool = self._disk.spool
        while True:
            with self._lock:
                self._spill_wanted = False
                self._spilling = waiting = self._next_to_spill()
            if waiting is None:
                self._progress()
                return
            try:
                if not waiting.request.idle:
                    spool.append(waiting.request)
            except Exception as error:  # the request stays in memory after any error
                spool.warn_once(error)
                self._put_back(waiting)
                return
            with self._lock:
                if self._spilling is not waiting:  # dropped in the meantime: the exit did not wait for the disk
                    return
                self._spilling = None
                self._memory_bytes -= len(waiting.request.body)
                self.stored = self.stored or not waiting.request.idle
                self._accounting.move(self.signal, Stage.MEMORY, Stage.DISK, waiting.request.items)
                self.count_lost()
            self._forget(waiting)

    def _next_to_spill(self) -> Waiting | None:
        while self.over and self._front and self._front[0].on_disk:
            self._front.popleft()
        if self._front and not self._front[0].on_disk:
            if self.over or not (self._sending or self.stored):
                return self._front.popleft()
            if self._online and not self.stored and self._memory_bytes <= _MEMORY_BYTES:
                return None  # the request that is being sent is older, and would end up behind the others
        return self._memory.popleft() if self._memory else None

    def _put_back(self, waiting: Waiting) -> None:
        with self._lock:
            if self._spilling is not waiting:
                return
            self._spilling = None
            self._memory.appendleft(waiting)
            self._disk_not_before = time.monotonic() + _DISK_PAUSE
            self._drop_beyond(_MEMORY_BYTES)

    def _drop_beyond(self, limit: int) -> None:
        """Drop the oldest requests in memory beyond a number of bytes, because the disk does not accept them."""
        dropped: Counter[str] = Counter()
        while self._memory_bytes > limit and len(self._memory) > 1:
            oldest = self._memory.popleft()
            self._memory_bytes -= len(oldest.request.body)
            dropped["disk"] += oldest.request.items
            self._forget(oldest)
        self._accounting.drop(self.signal, Stage.MEMORY, "disk", dropped["disk"])
