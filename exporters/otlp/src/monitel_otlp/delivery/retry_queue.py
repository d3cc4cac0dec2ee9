"""The requests of one signal on their way: in order, one at a time, until each is answered for."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from monitel_otlp.delivery.backlog import Backlog
from monitel_otlp.transport.http import Answer, Sender, Verdict
from monitel_otlp.delivery.request_splitting import isolate, split
from monitel_otlp.spool.spool import SpoolError

if TYPE_CHECKING:
    from threading import RLock

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.spool.spool import Spool
    from monitel_otlp.accounting import Tally

_log = logging.getLogger("monitel.otlp")

REQUEST_BYTES = 3_500_000  # gRPC servers take 4 MiB
_MEMORY_BYTES = 64 << 20
_OLDEST_IN_MEMORY_NS = 60 * 10**9
_LONGEST_PAUSE = 30.0
_REFUSED_PAUSE = 60.0
_LONGEST_ASKED = 600.0  # a backend may ask for more
_TRIES = 3  # of a request on which the backend breaks


class Outbox:
    """A FIFO of requests, delivered in the order of creation and retried in that order.

    What is dropped is counted by reason: ``rejected`` (kept in ``rejected/`` beside the spool), ``unconfirmed``
    (rejected, but an earlier attempt may have been taken), ``partial_success``, ``spool_full``, ``disk``.

    Args:
        signal: Whose requests these are.
        sender: Makes the attempts; None is offline, where everything goes to the spool.
        spool: Where requests go that memory cannot hold, or that wait for more than a minute.
        tally: Told what became of every item.
        lock: Held while requests change places, never while one is sent.
    """

    def __init__(self, signal: str, sender: Sender | None, spool: Spool, tally: Tally, lock: RLock) -> None:
        self.signal = signal
        self._over = False
        self._sender = sender
        self._spool = spool
        self._tally = tally
        self._lock = lock
        self._backlog = Backlog(signal, spool)
        self._not_before = 0.0
        self._failures = 0  # attempts in a row that say nothing about the request itself
        self._tries = 0  # of the oldest request, on which the backend broke
        self._unanswered = False  # the oldest request may have been taken without our hearing of it
        self.trouble: Answer | None = None  # why the oldest request is still here

    @property
    def memory_items(self) -> int:
        """Items that wait in memory."""
        return self._backlog.memory_items

    def put(self, request: FrozenRequest) -> None:
        """Take a request; one that is too large for a backend's limits is taken apart."""
        halves = split(request) if len(request.body) > REQUEST_BYTES else None
        for part in halves or ():
            self.put(part)
        if halves is None:
            with self._lock:
                self._backlog.put(request)

    def waits(self) -> bool:
        """Whether something is neither delivered nor, offline, on disk."""
        with self._lock:
            return self._backlog.memory_bytes > 0 or (self._sender is not None and self._backlog.oldest() is not None)

    def deliver(self, *, urgent: bool, deadline: float | None) -> None:
        """Send what waits, oldest first, until something keeps it from going on.

        Args:
            urgent: Do not sit out a pause after a failure.
            deadline: Monotonic time by which to be back.
        """
        while (urgent or time.monotonic() >= self._not_before) and self.deliver_one(deadline):
            pass

    def deliver_one(self, deadline: float | None = None) -> bool:
        """Make an attempt with the oldest request; True if it is dealt with, and the next one can go."""
        with self._lock:
            request = None if self._over or self._sender is None else self._backlog.oldest()
        if request is None:
            return False
        answer = self._attempt(request, deadline)
        return answer is not None and self._settle(request, answer, deadline)

    def keep(self) -> None:
        """Move to disk what memory should not hold: all of it offline, and what is too much or too old."""
        with self._lock:
            if self._over:
                return
            oldest_ns = self._backlog.oldest_in_memory_ns()
            late = oldest_ns is not None and time.time_ns() - oldest_ns > _OLDEST_IN_MEMORY_NS
            if self._sender is None or late or self._backlog.memory_bytes > _MEMORY_BYTES:
                self._spill(last=False)

    def end(self) -> None:
        """Move everything to disk; an attempt that is still under way changes nothing any more."""
        with self._lock:
            self._over = True
            self._spill(last=True)

    def _attempt(self, request: FrozenRequest, deadline: float | None) -> Answer | None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if self._sender is None or (remaining is not None and remaining <= 0):
            return None
        began = time.perf_counter()
        answer = self._sender.send(request, remaining)
        self._tally.attempted(self.signal, time.perf_counter() - began)
        return answer

    def _settle(self, request: FrozenRequest, answer: Answer, deadline: float | None) -> bool:
        """Do what the answer asks for; True if the next request can go."""
        if answer.verdict is Verdict.FAILED:
            self._tries += 1
            verdict = Verdict.REJECTED if self._tries >= _TRIES else Verdict.RETRY
            answer = Answer(verdict, answer.reason, answer.retry_after, answered=answer.answered)
        if answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
            self._unanswered = self._unanswered or not answer.answered
            self._pause(answer)
            return False
        if self._failures:
            _log.warning("%s: delivering again", self._url)
        parts: list[FrozenRequest] = []
        if answer.verdict is Verdict.DELIVERED:
            self._delivered(request, answer)
        elif answer.verdict is Verdict.TOO_LARGE and (halves := split(request)):
            parts = list(halves)
        elif self._unanswered:
            self._set_aside(request, answer, "unconfirmed")
        else:
            found = isolate(request, lambda part: self._attempt(part, deadline))
            self._tally.exported(self.signal, found.delivered)
            for part in found.rejected:
                self._set_aside(part, answer, "rejected")
            parts = found.unsent
        with self._lock:
            if self._over:
                return False
            self._backlog.replace_oldest(parts)
        self._failures = self._tries = 0
        self.trouble = None
        self._not_before = 0.0
        self._unanswered = False
        return True

    @property
    def _url(self) -> str:
        return self._sender.url if self._sender else "offline"

    def _delivered(self, request: FrozenRequest, answer: Answer) -> None:
        left_out = min(answer.rejected, request.items)
        if answer.rejected:
            _log.warning("%s took a request but left %d out: %s", self._url, answer.rejected, answer.reason)
        self._tally.exported(self.signal, request.items - left_out)
        self._tally.dropped(self.signal, "partial_success", left_out)

    def _pause(self, answer: Answer) -> None:
        self._failures += 1
        self.trouble = answer
        if self._failures == 1:
            _log.warning("%s: %s; everything is kept, and tried again", self._url, answer.reason)
        if answer.verdict is Verdict.REFUSED:
            pause = _REFUSED_PAUSE
        elif answer.retry_after is not None:
            pause = min(answer.retry_after, _LONGEST_ASKED)
        else:
            pause = min(_LONGEST_PAUSE, 2.0 ** min(self._failures, 10)) * random.uniform(0.8, 1.2)  # noqa: S311
        self._not_before = time.monotonic() + pause

    def _set_aside(self, request: FrozenRequest, answer: Answer, reason: str) -> None:
        self._tally.dropped(self.signal, reason, request.items)
        try:
            with self._lock:
                path = self._spool.set_aside(request, answer.reason)
        except (OSError, SpoolError) as error:
            _log.warning("%s rejected a request (%s), and it cannot be kept: %s", self._url, answer.reason, error)
        else:
            _log.warning("%s rejected a request (%s); it is in %s", self._url, answer.reason, path)

    def _spill(self, *, last: bool) -> None:
        try:
            self._backlog.spill()
        except (OSError, SpoolError) as error:
            self._spool.complain(error)
            if last or self._backlog.memory_bytes > _MEMORY_BYTES:
                self._tally.dropped(self.signal, "disk", self._backlog.drop())
        self._tally.dropped(self.signal, "spool_full", self._spool.take_dropped(self.signal))
