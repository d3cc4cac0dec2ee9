"""A queue with a limit for items and for bytes, in Python: the twin of ``_bounded_queue_c.c``.

The C twin runs no Python inside a step. Here garbage collections and signal handlers may interrupt a step, and may use
the queue themselves. Therefore the lock is re-entrant, and a step first updates the counts, without a call, and then
moves the item by one call: Python runs handlers only after calls. Callbacks and destructors run after the outermost
step.
"""

from __future__ import annotations

from collections import deque
from operator import index
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

from monitel.failures import report_unraisable
from monitel.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

_Item = TypeVar("_Item")

_ITEM_BYTES = 128  # of each item: the item itself and its entry in the queue
_OBJECT_BYTES = 64  # of each object in a payload: its header and its entry in a container
_CHARACTER_BYTES = 4  # the most that a character outside ASCII takes
_DEPTH = 8  # depth to which nested containers are included

_WAKE = object()  # stands for a due wake-up among the dropped items


class QueueCounts(NamedTuple):
    """The counts of a queue at one moment; ``recorded - dropped - waiting`` items were taken.

    Attributes:
        recorded: Number of items put into the queue.
        dropped: Number of items that the queue dropped because it was full.
        waiting: Number of items in the queue.
    """

    recorded: int
    dropped: int
    waiting: int


@final
class BoundedQueue(Generic[_Item]):
    """Holds the newest items, within a limit for items and a limit for bytes.

    While it is over a limit it drops the oldest item, and counts it in the same step. An item that is larger than the
    byte limit is dropped itself; the others stay. Thread-safe, even in destructors, signal handlers and the callbacks.
    A forked child must create a new queue.

    Args:
        max_items: The most items in the queue.
        max_bytes: The most bytes of all items, by the estimate of :meth:`put`.
        wake: Called when the queue becomes half full by either limit, and not again until a :meth:`take` leaves it
            below half. Both callbacks run in the thread that calls :meth:`put`; their exceptions go to
            :func:`sys.unraisablehook`.
        evicted: Called with each dropped item.

    Raises:
        TypeError: A limit is not an int.
        ValueError: A limit is below 1.

    Example:
        >>> from monitel.bounded_queue import BoundedQueue
        >>> queue = BoundedQueue(2, 1_000_000)
        >>> for item in "abc":
        ...     queue.put(item)
        >>> queue.counts()
        QueueCounts(recorded=3, dropped=1, waiting=2)
        >>> queue.take(10)
        ['b', 'c']
    """

    __slots__ = (
        "_bytes",
        "_dropped",
        "_evicted",
        "_gone",
        "_half_bytes",
        "_half_items",
        "_items",
        "_lock",
        "_max_bytes",
        "_max_items",
        "_recorded",
        "_waiting",
        "_wake",
        "_woken",
    )

    def __init__(
        self,
        max_items: int,
        max_bytes: int,
        *,
        wake: Callable[[], object] | None = None,
        evicted: Callable[[_Item], object] | None = None,
    ) -> None:
        self._max_items = index(max_items)
        self._max_bytes = index(max_bytes)
        if self._max_items < 1 or self._max_bytes < 1:
            raise ValueError(f"max_items and max_bytes must be at least 1, got {max_items} and {max_bytes}")
        self._half_items = (self._max_items + 1) // 2
        self._half_bytes = (self._max_bytes + 1) // 2
        self._wake = wake
        self._evicted = evicted
        self._lock = RLock()
        self._items: deque[tuple[_Item, int]] = deque()
        self._gone: deque[Any] = deque()  # dropped items and due wake-ups, until the outermost step ends
        self._recorded = self._dropped = self._waiting = self._bytes = 0
        self._woken = False  # wake() was called, or is due, since the queue was last below half

    def put(self, item: _Item, payload: Any = None) -> None:
        """Append an item, and drop the oldest items while the queue is over a limit.

        Never raises, whatever the payload is.

        Args:
            item: The item.
            payload: The basis of the item's estimated size: its number of bytes, or the str, bytes or dict that makes
                up most of it. A dict counts with its keys and values, lists and tuples with their elements; all other
                objects have a constant size.
        """
        size = _size(payload, self._max_bytes)
        entry = item, size
        items, gone = self._items, self._gone
        with self._lock:
            if size > self._max_bytes:
                self._recorded += 1
                self._dropped += 1
                gone.append(item)
            else:
                self._recorded += 1
                self._waiting += 1
                self._bytes += size
                items.append(entry)
                while self._waiting > self._max_items or self._bytes > self._max_bytes:
                    try:
                        self._bytes -= items[0][1]
                        self._waiting -= 1
                        self._dropped += 1
                        gone.append(items.popleft()[0])
                    except IndexError:  # a signal handler has emptied the queue
                        break
                if not self._woken and (self._waiting >= self._half_items or self._bytes >= self._half_bytes):
                    self._woken = True
                    gone.append(_WAKE)
        if gone:
            self._finish()

    def take(self, limit: int) -> list[_Item]:
        """Remove up to ``limit`` items, and return them, oldest first."""
        limit = index(limit)
        taken: list[_Item] = []
        items = self._items
        with self._lock:
            while self._waiting and len(taken) < limit:
                try:
                    self._bytes -= items[0][1]
                    self._waiting -= 1
                    taken.append(items.popleft()[0])
                except IndexError:  # a signal handler has emptied the queue
                    break
            if self._waiting < self._half_items and self._bytes < self._half_bytes:
                self._woken = False
        if self._gone:
            self._finish()
        return taken

    def counts(self) -> QueueCounts:
        """Return consistent counts."""
        with self._lock:
            recorded = self._recorded
            dropped = self._dropped
            waiting = self._waiting
        if self._gone:
            self._finish()
        return QueueCounts(recorded, dropped, waiting)

    @property
    def weight_bytes(self) -> int:
        """Estimated size of the items in the queue."""
        return self._bytes

    def __len__(self) -> int:
        return self._waiting

    def _finish(self) -> None:
        """Call the callbacks and release dropped items; inside an interrupted step, leave both to that step."""
        lock: Any = self._lock
        if lock._is_owned():  # as Condition does
            return
        while self._gone:
            try:
                item = self._gone.popleft()
            except IndexError:  # another thread was faster
                return
            callback, arguments = (self._wake, ()) if item is _WAKE else (self._evicted, (item,))
            if callback is not None:
                _call(callback, *arguments)


def _call(callback: Callable[..., object], *arguments: Any) -> None:
    try:
        callback(*arguments)
    except BaseException as error:
        report_unraisable(error)


def _size(payload: Any, limit: int) -> int:
    """Estimate the bytes of an item from its payload; stop at any number beyond the limit."""
    if payload is None:
        return _ITEM_BYTES
    if issubclass(type(payload), int):
        return max(int.__index__(payload), 0)
    return _add_size(payload, _ITEM_BYTES, limit, _DEPTH)


def _add_size(value: Any, size: int, limit: int, depth: int) -> int:
    """Add the bytes of an object to a size, until that is beyond the limit."""
    kind = type(value)  # isinstance() asks the object for its class
    size += _OBJECT_BYTES
    if issubclass(kind, str):
        return size + str.__len__(value) * (1 if str.isascii(value) else _CHARACTER_BYTES)
    if issubclass(kind, bytes):
        return size + bytes.__len__(value)
    if depth == 0:
        return size
    elements: tuple[Any, ...]
    if issubclass(kind, dict):
        try:
            elements = (*dict.keys(value), *dict.values(value))
        except RuntimeError:  # another thread is changing it
            return size
    elif issubclass(kind, list):
        elements = (*list.__iter__(value),)
    elif issubclass(kind, tuple):
        elements = (*tuple.__iter__(value),)
    else:
        return size
    for element in elements:
        if size > limit:
            break
        size = _add_size(element, size, limit, depth - 1)
    return size
