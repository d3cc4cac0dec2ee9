"""The thread that encodes what was queued, and has it delivered."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Lock, RLock, Thread
from typing import TYPE_CHECKING

from monitel_otlp.sdk._compat import suppress_instrumentation
from monitel_otlp.delivery.retry_queue import Outbox
from monitel_otlp.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.transport.http import Sender
    from monitel_otlp.spool.spool import Spool
    from monitel_otlp.accounting import Tally

_log = logging.getLogger("monitel.otlp")

_SEND_SHARE, _JOIN_SHARE = 0.6, 0.8  # of the time to shut down; the rest is for the disk


class Delivery:
    """Works in rounds: encode what is queued, send what can be sent, put on disk what memory should not hold.

    Args:
        encode: Puts everything queued into requests, by way of :meth:`put`; runs in the delivery thread, and is told
            whether this is the last round.
        senders: How to send each signal; a signal that has none goes to the spool (offline).
        spool: Where requests go that memory cannot hold or that the end of the process finds undelivered.
        tally: Told what became of every item.
        interval: Seconds between two rounds.

    Attributes:
        spooled_items: What the spool holds at the end.
    """

    def __init__(
        self, encode: Callable[[bool], None], senders: Mapping[str, Sender], spool: Spool, tally: Tally, interval: float
    ) -> None:
        self.spooled_items = 0
        self._encode = encode
        self._spool = spool
        self._interval = interval
        self._lock = RLock()  # of the outboxes and the spool
        self._outboxes = {
            signal: Outbox(signal, senders.get(signal), spool, tally, self._lock) for signal in SIGNALS
        }
        self._encode_lock = Lock()  # while the thread encodes: at the end somebody else may have to
        self._bell: SimpleQueue[None] = SimpleQueue()  # may be rung from a signal handler
        self._rounds = Condition()
        self._wanted = self._done = 0
        self._deadline: float | None = None  # of the last round
        self._thread = Thread(target=self._run, name="monitel-otlp", daemon=True)

    def start(self) -> None:
        """Start the thread, where one can still be started: a process that ends makes its last round without."""
        with suppress(RuntimeError):
            self._thread.start()

    def wake(self) -> None:
        """Begin the next round now; takes no lock."""
        self._bell.put(None)

    def encode(self, patience: float) -> None:
        """Encode what is queued here and now, unless the thread is at it for longer than so many seconds."""
        if self._encode_lock.acquire(timeout=patience):
            try:
                self._guarded(lambda: self._encode(self._deadline is not None))
            finally:
                self._encode_lock.release()

    def put(self, request: FrozenRequest) -> None:
        """Take a request that was just encoded."""
        self._outboxes[request.signal].put(request)

    @property
    def memory_items(self) -> int:
        """Items in requests that wait in memory."""
        return sum(outbox.memory_items for outbox in self._outboxes.values())

    def force_flush(self, timeout: float) -> bool:
        """Have everything queued encoded and delivered.

        Returns:
            True if within ``timeout`` seconds all of it was acknowledged, or is on disk where a signal is offline.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self._rounds:
                self._wanted = wanted = self._done + 2  # a round under way may have begun too early
                self.wake()
                if not self._rounds.wait_for(lambda: self._done >= wanted, deadline - time.monotonic()):  # noqa: B023
                    return False
            if not any(outbox.waits() for outbox in self._outboxes.values()):
                return True
            with self._rounds:
                self._rounds.wait(min(0.5, max(0.0, deadline - time.monotonic())))
        return False

    def shutdown(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        """Make a last round, and put into the spool what it does not deliver.

        Args:
            timeout: Seconds at most, whatever the backend does.
            in_signal_handler: Encode nothing in this thread, which may have been interrupted inside the SDK's locks.

        Returns:
            As :meth:`force_flush`.
        """
        self._deadline = time.monotonic() + _SEND_SHARE * timeout
        self.wake()
        if self._thread.ident is None:
            self._run()
        else:
            self._thread.join(_JOIN_SHARE * timeout)
        if self._thread.is_alive():  # it waits for an answer: what it has not seen yet is encoded without it
            self._encode_without_thread(max(0.1, 0.05 * timeout), elsewhere=in_signal_handler)
        with self._lock:
            undelivered = [outbox for outbox in self._outboxes.values() if outbox.waits()]
            for outbox in self._outboxes.values():
                outbox.end()
            self.spooled_items = self._spool.items
            self._spool.close()
        return not undelivered

    def _encode_without_thread(self, patience: float, *, elsewhere: bool) -> None:
        if elsewhere:
            helper = Thread(target=self.encode, args=(patience,), name="monitel-otlp-last", daemon=True)
            helper.start()
            helper.join(2 * patience)
        else:  # at exit no thread can be started any more
            self.encode(patience)

    def _run(self) -> None:
        suppress_instrumentation()
        while True:
            self._sleep()
            last = self._deadline is not None
            with self._encode_lock:
                self._guarded(lambda: self._encode(last))  # noqa: B023  called here
            for outbox in self._outboxes.values():
                urgent = last or self._done < self._wanted
                self._guarded(lambda: outbox.deliver(urgent=urgent, deadline=self._deadline))  # noqa: B023  called here
                self._guarded(outbox.keep)
            with self._rounds:
                self._done += 1
                self._rounds.notify_all()
            if last:
                return

    def _guarded(self, step: Callable[[], None]) -> None:
        """One step of a round: when it fails, the others are done all the same."""
        try:
            step()
        except Exception:
            _log.exception("a step of the delivery of telemetry failed; it goes on")

    def _sleep(self) -> None:
        if self._done < self._wanted:
            return
        try:
            self._bell.get(timeout=self._interval)
            while True:
                self._bell.get_nowait()
        except Empty:
            pass
