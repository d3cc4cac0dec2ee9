"""Requests of one signal that are not delivered yet, in the order of creation: on disk first, then in memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.spool.spool import Spool


class Backlog:
    """A FIFO whose older part is in the spool once memory is full, or when the process ends.

    Args:
        signal: Whose requests these are.
        spool: Where they go from memory.
    """

    def __init__(self, signal: str, spool: Spool) -> None:
        self.memory_bytes = 0
        self.memory_items = 0
        self._signal = signal
        self._spool = spool
        self._parts: deque[FrozenRequest] = deque()  # of a request that was taken apart: these are the oldest
        self._memory: deque[FrozenRequest] = deque()

    def oldest_in_memory_ns(self) -> int | None:
        """When the oldest request in memory was encoded, Unix ns."""
        oldest = self._parts or self._memory
        return oldest[0].created_ns if oldest else None

    def put(self, request: FrozenRequest) -> None:
        """Put a request behind the others."""
        self._memory.append(request)
        self._count(request, 1)

    def oldest(self) -> FrozenRequest | None:
        """The request to be delivered next; None when there is none."""
        if self._parts:
            return self._parts[0]
        return self._spool.oldest(self._signal) or (self._memory[0] if self._memory else None)

    def remove_oldest(self) -> None:
        """Forget what :meth:`oldest` gave."""
        if self._parts:
            self._count(self._parts.popleft(), -1)
        elif self._spool.oldest(self._signal):
            self._spool.remove_oldest(self._signal)
        else:
            self._count(self._memory.popleft(), -1)

    def replace_oldest(self, parts: Sequence[FrozenRequest]) -> None:
        """Put parts of the request that :meth:`oldest` gave in its place."""
        self.remove_oldest()
        self._parts.extendleft(reversed(parts))
        for part in parts:
            self._count(part, 1)

    def spill(self) -> None:
        """Write what is in memory to the spool.

        Raises:
            OSError: The disk takes no more; the rest is still in memory.
        """
        for waiting in (self._parts, self._memory):
            while waiting:
                if not waiting[0].idle:
                    self._spool.append(waiting[0])
                self._count(waiting.popleft(), -1)

    def drop(self) -> int:
        """Give up what is in memory, because no disk takes it.

        Returns:
            Items dropped.
        """
        dropped = self.memory_items
        self._parts.clear()
        self._memory.clear()
        self.memory_bytes = self.memory_items = 0
        return dropped

    def _count(self, request: FrozenRequest, sign: int) -> None:
        self.memory_bytes += sign * len(request.body)
        self.memory_items += sign * request.items
