"""Delivery of encoded requests: a queue and a sender for each signal, and the disk."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from monitel.os_threads import Event
from monitel_otlp.accounting import EXIT, Stage
from monitel_otlp.delivery.disk import Disk
from monitel_otlp.delivery.request_splitting import split
from monitel_otlp.delivery.retry_queue import RetryQueue
from monitel_otlp.delivery.sender import Sender
from monitel_otlp.messages.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.delivery.retry_queue import Kept
    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.spool.spool import Spool
    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")

REQUEST_BYTES = 3_500_000  # gRPC servers accept 4 MiB
_TICK = 0.05  # seconds between two checks of queues that other threads empty


class Delivery:
    """Delivers the requests of each signal in a separate thread, and writes undelivered requests to disk.

    Args:
        accounting: Counts the items.
        transports: The transport of each signal. A signal without one is offline; its requests go to the spool.
        spool: Holds requests that memory cannot hold, and requests that are undelivered at the end of the process.
        attempted: Called with the signal and the seconds of each attempt.
        progressed: Called when a request is settled or on disk.
        kept: The black box, which keeps the requests in memory.
    """

    def __init__(
        self,
        accounting: Accounting,
        transports: Mapping[str, Transport],
        spool: Spool,
        attempted: Callable[[str, float], None],
        progressed: Callable[[], object],
        *,
        kept: Kept | None = None,
    ) -> None:
        self._accounting = accounting
        self._kept = kept
        self._progress = Event()
        self._progressed = progressed
        self.disk = Disk(spool)
        self.queues = {
            signal: RetryQueue(
                signal, accounting, self.disk, self._progress_made, online=signal in transports, kept=kept
            )
            for signal in SIGNALS
        }
        self._senders = {
            signal: Sender(self.queues[signal], transport, self.disk, attempted)
            for signal, transport in transports.items()
        }

    def put(self, request: FrozenRequest, key: str | None = None) -> None:
        """Add a request of the encoder that is small enough for backends, with its key in the black box."""
        queue = self.queues[request.signal]
        queue.put(request, key)
        queue.spill_if_due()
        if (sender := self._senders.get(request.signal)) is not None:
            sender.wake()

    @property
    def stored(self) -> bool:
        """True if requests are on disk, even without items."""
        return any(queue.stored for queue in self.queues.values())

    def keep_up(self) -> None:
        """Move requests to disk that have waited too long in memory."""
        for queue in self.queues.values():
            queue.spill_if_due()

    def flush(self, deadline: float) -> bool:
        """Send all requests that were added so far.

        Args:
            deadline: Monotonic time limit.

        Returns:
            True if all of them were acknowledged, or are on disk because the signal is offline.
        """
        numbers = {signal: queue.last_number for signal, queue in self.queues.items()}
        while True:
            self._progress.clear()
            waiting = [signal for signal, queue in self.queues.items() if not queue.is_empty(numbers[signal])]
            if not waiting:
                self.disk.wait(deadline - time.monotonic())  # rejected requests are written as well
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            for signal in waiting:
                if (sender := self._senders.get(signal)) is not None:
                    sender.wake(urgent=True)
            self._progress.wait(min(remaining, _TICK))

    def finish(self, deadline: float) -> None:
        """Make the last attempts until a monotonic deadline."""
        senders = list(self._senders.values())
        for sender in senders:
            sender.finish(deadline)
        for number, sender in enumerate(senders):  # without a thread, each sender has its share of the time
            now = time.monotonic()
            sender.finish_here(now + max(0.0, deadline - now) / (len(senders) - number))
        for sender in senders:
            sender.finished.wait(max(0.0, deadline - time.monotonic()))

    def end(self, raw: Sequence[RawItems], deadline: float) -> None:
        """Write undelivered requests, and then raw items, to the spool.

        Everything that is not written at the deadline is dropped, with reason ``exit``.

        Args:
            raw: Items in their raw form.
            deadline: Monotonic time limit. A write that hangs may continue after it.
        """
        for queue in self.queues.values():
            queue.end()
        for sender in self._senders.values():
            sender.stop()
        jobs = [queue.spill_rest for queue in self.queues.values()]
        jobs += [partial(self._write_raw, items) for items in raw]
        if self._kept is not None:  # at once, because the raw items are there as well
            jobs.append(self._kept.close)
        try:
            for job in [*jobs, self._close]:
                self.disk.call(job, deadline - time.monotonic())
        except Exception:
            _log.debug("not everything was written to the spool in time", exc_info=True)
        for queue in self.queues.values():
            queue.drop_rest(EXIT)
        for items in raw:
            self._settle_raw(items, EXIT)
        self.disk.stop()

    def _progress_made(self) -> None:
        self._progress.set()
        self._progressed()

    def _close(self) -> None:
        try:
            self.disk.spool.close()
        finally:
            for queue in self.queues.values():
                queue.count_lost()

    def _write_raw(self, items: RawItems) -> None:
        try:
            written = self.disk.spool.append_raw(items.signal, items.header, items.blocks)
        except Exception as error:
            self.disk.spool.warn_once(error)
            written = 0
        self._settle_raw(items, "disk", written)

    def _settle_raw(self, items: RawItems, reason: str, written: int = 0) -> None:
        """Count raw items once, as on disk or as dropped."""
        with self._accounting.lock:
            if not items.settled:
                items.settled = True
                self._accounting.move(items.signal, Stage.ENCODING, Stage.DISK, written)
                self._accounting.drop(items.signal, Stage.ENCODING, reason, items.items - written)


def parts_of(request: FrozenRequest) -> Iterator[FrozenRequest]:
    """Yield a request, or the parts of one that is too large for backends."""
    halves = split(request) if len(request.body) > REQUEST_BYTES else None
    if halves is None:
        yield request
    for half in halves or ():
        yield from parts_of(half)


@dataclass(slots=True, eq=False)
class RawItems:
    """Items in their raw form, ready to be written to disk.

    Attributes:
        signal: The signal of the items.
        header: The header for the decoder.
        blocks: Encoded blocks, each with its number of items.
        settled: The items have been counted as on disk or dropped.
    """

    signal: str
    header: Any
    blocks: list[tuple[bytes, int]]
    settled: bool = False

    @property
    def items(self) -> int:
        """The number of items in all blocks."""
        return sum(count for _, count in self.blocks)
