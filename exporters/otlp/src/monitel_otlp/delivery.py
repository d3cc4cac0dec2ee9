"""The thread that encodes what was queued and delivers it, one request at a time."""

from __future__ import annotations

import logging
import random
import time
from threading import Condition, RLock, Thread
from typing import TYPE_CHECKING

from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.backlog import Backlog
from monitel_otlp.request import SIGNALS
from monitel_otlp.sender import Answer, Verdict
from monitel_otlp.spool import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.sender import Sender
    from monitel_otlp.spool import Spool
    from monitel_otlp.tally import Tally

_log = logging.getLogger("monitel.otlp")

MEMORY_BYTES = 64 << 20
_LONGEST_PAUSE = 30.0
_REFUSED_PAUSE = 60.0


class Delivery:
    """Delivers frozen requests: one FIFO a signal, retried in order, spilled to the spool when memory is full.

    What is dropped, and counted by reason: what a backend rejects for good (kept in ``rejected/`` beside the spool),
    what the spool's size limit pushes out, and what neither memory nor disk can hold.

    Args:
        encode: Puts everything queued into requests, by way of :meth:`put`; runs in the delivery thread.
        senders: How to send each signal; a signal that has none goes to the spool (offline).
        spool: Where requests go that memory cannot hold or that the end of the process finds undelivered.
        tally: Told what became of every item.
        interval: Seconds between two rounds.
    """

    def __init__(
        self,
        encode: Callable[[], None],
        senders: Mapping[str, Sender],
        spool: Spool,
        tally: Tally,
        interval: float,
    ) -> None:
        self.backlogs = {signal: Backlog(signal, spool) for signal in SIGNALS}
        self._encode = encode
        self._senders = senders
        self._spool = spool
        self._tally = tally
        self._interval = interval
        self._lock = RLock()  # the backlogs and the spool; never held while sending
        self._wake = Condition()
        self._rounds_wanted = 0
        self._rounds_done = 0
        self._deadline: float | None = None  # of the last round
        self._over = False  # the spool has been handed to whoever ends the process
        self._not_before = dict.fromkeys(SIGNALS, 0.0)
        self._failures = dict.fromkeys(SIGNALS, 0)
        self._disk_failed = False
        self.spooled_items = 0  # once it is over: what the spool still holds
        self._thread = Thread(target=self._run, name="monitel-otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, request: FrozenRequest) -> None:
        """Take a request that was just encoded."""
        with self._lock:
            self.backlogs[request.signal].put(request)

    def force_flush(self, timeout: float) -> bool:
        """Have everything queued encoded and delivered.

        Returns:
            True if within ``timeout`` seconds all of it was acknowledged, or is on disk where a signal is offline.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._wake:
                self._rounds_wanted = self._rounds_done + 2  # a round under way may have begun too early
                self._wake.notify_all()
                if not self._wake.wait_for(self._is_done, deadline - time.monotonic()):
                    return False
            if self._nothing_waits():
                return True
            with self._wake:
                if not self._wake.wait(min(1.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return False

    def shutdown(self, timeout: float) -> bool:
        """Make a last round, and put into the spool what it does not deliver.

        Returns:
            As :meth:`force_flush`. The bound of ``timeout`` seconds holds whatever the backend does.
        """
        begin = time.monotonic()
        with self._wake:
            self._deadline = begin + 0.6 * timeout  # the rest is for the disk
            self._wake.notify_all()
        self._thread.join(0.75 * timeout)
        with self._lock:
            self._over = True  # a thread that still hangs in a request touches nothing any more
            delivered = all(not self._waits(signal) for signal in self._senders)
            for signal in SIGNALS:
                self._spill(signal)
            self.spooled_items = sum(request.items for request in self._spool.requests())
            self._spool.close()
        return delivered

    def _nothing_waits(self) -> bool:
        with self._lock:
            return not any(self._waits(signal) for signal in SIGNALS)

    def _waits(self, signal: str) -> bool:
        backlog = self.backlogs[signal]
        return backlog.memory_bytes > 0 or (signal in self._senders and backlog.oldest() is not None)

    def _run(self) -> None:
        suppress_instrumentation()
        while True:
            with self._wake:
                self._wake.wait_for(self._is_wanted, self._interval)
                last = self._deadline is not None
            try:
                self._round()
            except Exception:
                _log.exception("the delivery of telemetry failed; it goes on")
            with self._wake:
                self._rounds_done += 1
                self._wake.notify_all()
            if last:
                return

    def _is_done(self) -> bool:
        return self._rounds_done >= self._rounds_wanted

    def _is_wanted(self) -> bool:
        return self._deadline is not None or not self._is_done()

    def _round(self) -> None:
        self._encode()
        for signal, backlog in self.backlogs.items():
            self._deliver(signal, backlog)
            with self._lock:
                if not self._over and (signal not in self._senders or backlog.memory_bytes > MEMORY_BYTES):
                    self._spill(signal)

    def _deliver(self, signal: str, backlog: Backlog) -> None:
        sender = self._senders.get(signal)
        while sender is not None and (self._is_wanted() or time.monotonic() >= self._not_before[signal]):
            with self._lock:
                request = None if self._over else backlog.oldest()
            remaining = None if self._deadline is None else self._deadline - time.monotonic()
            if request is None or (remaining is not None and remaining <= 0):
                return
            answer = sender.send(request, remaining)
            with self._lock:
                if self._over or not self._settle(request, backlog, answer, sender.url):
                    return

    def _settle(self, request: FrozenRequest, backlog: Backlog, answer: Answer, url: str) -> bool:
        """Do what the answer asks for; True if the next request can go."""
        signal = request.signal
        if answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
            self._pause(signal, answer, url)
            return False
        if self._failures[signal]:
            _log.warning("%s: delivered again", url)
        self._failures[signal] = 0
        self._not_before[signal] = 0.0
        if answer.verdict is Verdict.REJECTED:
            self._set_aside(request, answer, url)
        else:
            if answer.rejected:
                _log.warning("%s took a request but left %d items out: %s", url, answer.rejected, answer.reason)
            self._tally.exported(signal, max(0, request.items - answer.rejected))
            self._tally.dropped(signal, "partial_success", min(answer.rejected, request.items))
        backlog.remove_oldest()
        return True

    def _pause(self, signal: str, answer: Answer, url: str) -> None:
        self._failures[signal] += 1
        if self._failures[signal] == 1:
            _log.warning("%s: %s; everything is kept, and tried again", url, answer.reason)
        if answer.verdict is Verdict.REFUSED:
            pause = _REFUSED_PAUSE
        elif answer.retry_after is not None:
            pause = answer.retry_after
        else:
            pause = min(_LONGEST_PAUSE, 2.0 ** min(self._failures[signal], 10)) * random.uniform(0.8, 1.2)  # noqa: S311
        self._not_before[signal] = time.monotonic() + pause

    def _set_aside(self, request: FrozenRequest, answer: Answer, url: str) -> None:
        self._tally.dropped(request.signal, "rejected", request.items)
        try:
            path = self._spool.set_aside(request, answer.reason)
        except (OSError, SpoolError) as error:
            _log.warning("%s rejected a request (%s), and it cannot be kept: %s", url, answer.reason, error)
        else:
            _log.warning("%s rejected a request (%s); it is in %s", url, answer.reason, path)

    def _spill(self, signal: str) -> None:
        backlog = self.backlogs[signal]
        try:
            backlog.spill()
        except (OSError, SpoolError) as error:
            if not self._disk_failed:
                self._disk_failed = True
                _log.warning("the spool in %s cannot be written: %s", self._spool.folder, error)
            if backlog.memory_bytes > MEMORY_BYTES or self._over:
                self._tally.dropped(signal, "disk", backlog.drop())
        self._tally.dropped(signal, "spool_full", self._spool.take_dropped(signal))
