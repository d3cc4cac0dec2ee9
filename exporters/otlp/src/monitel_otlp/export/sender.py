"""The thread that sends the items of one signal, in their order, one attempt at a time."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from monitel.os_threads import Event, Lock
from monitel.worker import Worker
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.export.requests import count, halves, split_after
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.transport.answer import Answer, Transport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.blackbox.journal import Journal
    from monitel.blackbox.record import Item
    from monitel_otlp.export.requests import Encoded, Encoder

    SetAside = Callable[[str, bytes, int, str], object]

_log = logging.getLogger("monitel.otlp")

ITEMS_PER_REQUEST = 500
REQUEST_BYTES = 3_500_000  # gRPC servers accept 4 MiB
_LONGEST_PAUSE = 30.0
_REFUSED_PAUSE = 60.0
_LONGEST_RETRY_AFTER = 600.0  # a longer pause that a backend requests is shortened
_INVALID_RETRY_AFTER = 86_400.0  # a Retry-After beyond a day is a mistake, and is ignored
_URGENT_PAUSE = 1.0  # between two attempts of a flush
_DISK_PAUSE = 0.02  # until the disk has loaded what is to be sent
_TRIES = 3  # of a request with which the backend fails
_ATTEMPTS = 16  # at parts of a rejected request, in which they are split


@dataclass
class _Search:
    """The search for the items that a backend rejects, in one request.

    The first half of the items is sent. If the backend accepts it, one of the others is rejected, and these are split
    without an attempt. When one item is found, the rest of the request is sent at once. So all arrive in their order.

    Attributes:
        end: Number of the last item of the request.
        left: Attempts that are allowed.
        bad: The items up to this one would be rejected together.
        has_accepted: The backend has accepted some.
        has_rejected: Some are found.
    """

    end: int
    left: int = _ATTEMPTS + 1
    bad: int = 0
    has_accepted: bool = False
    has_rejected: bool = False


class Outbox:
    """The items of one journal that are being sent.

    They are held here until they are settled, because the journal may drop its oldest items meanwhile.

    Args:
        journal: The journal.
        encoder: Encodes its items.
        most: The most items in a request; 0 for the usual number.
    """

    def __init__(self, journal: Journal, encoder: Encoder, most: int = 0) -> None:
        self.journal = journal
        self.encoder = encoder
        self._most = most or ITEMS_PER_REQUEST
        self._parts: list[Sequence[Item]] = []  # of one read, in order
        self._encoded: Encoded | None = None  # the first part
        self.search: _Search | None = None

    @property
    def is_empty(self) -> bool:
        """True if everything is settled."""
        return self.journal.settled >= self.journal.next - 1

    def head(self) -> Item | None:
        """Return the next item; None if there is none, or the disk has to load it."""
        if not self._parts:
            read = self.journal.read(self._most)
            if not read:
                return None
            self._parts = split_after(read, self.journal.sending)
        return self._parts[0][0]

    def next(self, before: int = sys.maxsize) -> tuple[Sequence[Item], Encoded] | None:
        """Return the items to send now, and their request.

        Args:
            before: Only items before the one with this number.

        Returns:
            None if there are none, or the disk has to load them.
        """
        head = self.head()
        if head is None or head.number >= before:
            return None
        if self._encoded is None:
            self._parts[:1] = split_after(self._parts[0], before - 1)
            if (search := self.search) is not None:
                while search.left > 1 and self._parts[0][-1].last == search.bad and count(self._parts[0]) > 1:
                    self.split()
            items = self._parts[0]
            if self.encoder.totals is not None:
                with self.journal.lock:
                    self.encoder.totals.pass_dropped(items[0].number)
            self._encoded = self.encoder.encode(items)
            if len(self._encoded.body) > REQUEST_BYTES and count(items) > 1:
                self.split()
                return self.next(before)
        self.journal.sending = self._parts[0][-1].last
        return self._parts[0], self._encoded

    def split(self) -> None:
        """Send the two halves of the items, one after the other, instead."""
        self._parts[:1] = halves(self._parts[0])
        self._encoded = None

    def settle(self, delivered: int, **dropped: int) -> None:
        """Note the outcome of the items that are sent now, in one step with the totals."""
        assert self._encoded is not None
        last = self._parts[0][-1].last
        with self.journal.lock:
            if self.encoder.totals is not None:
                self.encoder.totals.commit(last, self._encoded.draft)
            self.journal.settle(last, delivered, **dropped)
        del self._parts[0]
        self._encoded = None
        if self.search is not None and last >= self.search.end:
            self.search = None

    def join(self) -> None:
        """Send what is left of a request with a rejected item at once."""
        if self.search is not None:
            number = sum(part[-1].last <= self.search.end for part in self._parts)
            self._parts[:number] = [[item for part in self._parts[:number] for item in part]]

    def give_back(self) -> None:
        """Send nothing more."""
        self._parts, self._encoded = [], None
        self.journal.give_back()


def next_of(outboxes: Sequence[Outbox]) -> tuple[Outbox, Sequence[Item], Encoded] | None:
    """Return the next request of a signal, with its outbox; None if there is none, or the disk has to load it.

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
    for outbox in (main, *beside):
        found = outbox.next(before if outbox is main else sys.maxsize)
        if found is not None:
            return outbox, *found
        if outbox is main and main.journal.loading is not None and main.journal.settled + 1 < before:
            return None
    return None


class Sender:
    """Sends the items of journals in order, and retries them in that order.

    After each failure it pauses, longer each time. A flush shortens the pause to a second, but not a pause that the
    backend has requested by Retry-After. Items are dropped and counted by reason: ``rejected`` (the request is set
    aside), ``unconfirmed`` (the same, but an earlier attempt may have been accepted), ``partial_success``,
    ``encoding``.

    Args:
        outboxes: The journals of the signal.
        transport: Makes the attempts.
        interval: Seconds between two looks at the journals.
        attempted: Called with the signal and the seconds of each attempt.
        set_aside: Called with the signal, the body of a rejected request, its number of items in accounts, and the
            reason.
        settled: Called before a request is sent, and when its items are settled.
    """

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        transport: Transport,
        *,
        interval: float = 5.0,
        attempted: Callable[[str, float], object] = lambda _signal, _seconds: None,
        set_aside: SetAside = lambda *_: None,
        settled: Callable[[], object] = lambda: None,
    ) -> None:
        self.signal = outboxes[0].encoder.signal
        self._outboxes = outboxes
        self._transport = transport
        self._interval = interval
        self._attempted = attempted
        self._set_aside = set_aside
        self._settled = settled
        self._worker = Worker(
            f"monitel-otlp-{self.signal}", self._send_waiting, interval, suppress_instrumentation, transport.close
        )
        self._sending = Lock()  # the thread and the caller at the end of the process must not send together
        self._random = Random()  # noqa: S311  not a secret; the global generator belongs to the application
        self._urgent = False
        self._deadline: float | None = None
        self.finished = Event()  # the last attempts were made
        self._not_before = 0.0  # end of the pause after a failure
        self._retry_after_end = 0.0  # end of the pause of a Retry-After
        self._failed_at = -_URGENT_PAUSE
        self._failures = 0  # consecutive failed attempts
        self._tries = 0  # failed attempts of the oldest request with the verdict FAILED
        self._unanswered = False  # the backend may have accepted the oldest request
        self._is_hopeless = False  # the backend has rejected all items of a request, and accepted none since
        self.trouble: Answer | None = None  # the last failure with the oldest request

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def wake(self, *, urgent: bool = False) -> None:
        """Send what waits now.

        Args:
            urgent: Shorten the pause after a failure.
        """
        self._urgent = self._urgent or urgent
        self._worker.wake()

    def finish(self, deadline: float) -> None:
        """Make the last attempts until a monotonic deadline, in the thread if there is one."""
        self._deadline = deadline
        self.wake(urgent=True)

    def finish_here(self, deadline: float) -> None:
        """Send in the caller's thread, if CPython has refused to start the thread."""
        if not self._worker.started:
            self._deadline = deadline
            self._urgent = True
            self._send_waiting()

    def pause(self, timeout: float) -> bool:
        """Wait until no attempt is made, for so many seconds at most; none is made until :meth:`resume`."""
        return self._sending.acquire(timeout=timeout)

    def resume(self) -> None:
        """Allow attempts again."""
        self._sending.release()

    def stop(self) -> None:
        """End the thread after the current attempt, and close the connection."""
        self.finished.set()
        self._worker.stop()
        if not self._worker.started:
            self._transport.close()

    def deliver_one(self) -> bool:
        """Make an attempt with the oldest items; return True if it has settled some, or split them."""
        found = next_of(self._outboxes)
        return found is not None and self._send(*found)

    def _send_waiting(self) -> float:
        with self._sending:
            if self.finished.is_set():
                return self._interval
            pause = self._pause()
            if pause <= 0:
                while not self.finished.is_set() and self.deliver_one():
                    pass
                self._urgent = False
                pause = self._pause()
            waits_for_disk = self.trouble is None and not all(outbox.is_empty for outbox in self._outboxes)
            if self._deadline is not None and not (waits_for_disk and time.monotonic() < self._deadline):
                self.finished.set()
                for outbox in self._outboxes:
                    outbox.give_back()
            if waits_for_disk:
                return _DISK_PAUSE
            return pause if self.trouble else self._interval

    def _pause(self) -> float:
        """Return the seconds until the next attempt is allowed."""
        now = time.monotonic()
        own = min(self._not_before, self._failed_at + _URGENT_PAUSE) if self._urgent else self._not_before
        if self._deadline is not None:
            own = 0.0
        return max(own, self._retry_after_end) - now

    def _send(self, outbox: Outbox, items: Sequence[Item], encoded: Encoded) -> bool:
        if not encoded.body:  # nothing is to be sent for windows without aggregations
            self._settle(outbox, encoded, count(items) - encoded.lost)
            return True
        self._settled()
        answer = self._attempt(items, encoded)
        if answer is None:
            return False
        if answer.verdict is Verdict.FAILED:
            self._tries += 1
            is_rejected = outbox.search is not None or self._tries >= _TRIES
            answer = replace(answer, verdict=Verdict.REJECTED if is_rejected else Verdict.RETRY)
        if answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
            self._unanswered = self._unanswered or not answer.answered
            self._failed(answer)
            return False
        if self._failures:
            _log.warning("%s: delivering again", self._transport.url)
        if answer.verdict is Verdict.DELIVERED:
            self._accepted(outbox, items, encoded, answer)
        elif answer.verdict is Verdict.TOO_LARGE and count(items) > 1:
            outbox.split()
        elif self._unanswered:
            self._reject(outbox, items, encoded, answer, "unconfirmed")
        elif not self._splits(outbox, items, answer):
            self._reject(outbox, items, encoded, answer, "rejected")
            outbox.join()
        self._failures = self._tries = 0
        self.trouble = None
        self._not_before = self._retry_after_end = 0.0
        self._unanswered = False
        return True

    def _attempt(self, items: Sequence[Item], encoded: Encoded) -> Answer | None:
        """Make one attempt; return None if the deadline has passed."""
        remaining = None if self._deadline is None else self._deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return None
        began = time.perf_counter()
        try:
            request = FrozenRequest(self.signal, encoded.body, count(items))
            answer = self._transport.send(request, remaining)
        except Exception as error:  # counts as a failed attempt
            answer = Answer(Verdict.RETRY, type(error).__name__, answered=False)
        self._attempted(self.signal, time.perf_counter() - began)
        return answer

    def _settle(self, outbox: Outbox, encoded: Encoded, delivered: int, **dropped: int) -> None:
        if encoded.lost:
            dropped["encoding"] = encoded.lost
        outbox.settle(delivered, **dropped)
        self._settled()

    def _accepted(self, outbox: Outbox, items: Sequence[Item], encoded: Encoded, answer: Answer) -> None:
        sent = count(items) - encoded.lost
        left_out = _estimate(self.signal, answer.rejected, sent, encoded.records)
        if answer.rejected:
            url = self._transport.url
            _log.warning("%s accepted a request but rejected %d records: %s", url, answer.rejected, answer.reason)
        self._is_hopeless = False
        if outbox.search is not None:
            outbox.search.has_accepted = True
            outbox.search.left -= 1
        self._settle(outbox, encoded, sent - left_out, partial_success=left_out)

    def _reject(self, outbox: Outbox, items: Sequence[Item], encoded: Encoded, answer: Answer, reason: str) -> None:
        """Settle rejected items, of which the backend may report that it has stored some, and set them aside."""
        sent = count(items) - encoded.lost
        rejected = _estimate(self.signal, answer.rejected, sent, encoded.records) or sent
        counted = rejected if outbox.journal.name == self.signal else 0  # data of the pipeline itself are not items
        self._set_aside(self.signal, encoded.body, counted, f"{self._transport.url}: {answer.reason}")
        self._settle(outbox, encoded, sent - rejected, **{reason: rejected})

    def _splits(self, outbox: Outbox, items: Sequence[Item], answer: Answer) -> bool:
        """Search for the rejected items of a request, with at most 16 attempts.

        If one item is rejected alone, and all others together, the whole request counts as rejected; and so do the next
        ones until a request is accepted. Items are not split if the backend reports that it has stored none of them.

        Returns:
            False if the items are to be settled as rejected.
        """
        if outbox.search is None:
            outbox.search = _Search(items[-1].last)
        search, number = outbox.search, count(items)
        search.left -= 1
        self._is_hopeless = self._is_hopeless or (search.has_rejected and not search.has_accepted)
        if number < 2 or search.left < 1 or self._is_hopeless or 0 < number <= answer.rejected:  # noqa: PLR2004  halves
            search.has_rejected, search.bad = True, 0
            return False
        search.bad = items[-1].last
        outbox.split()
        return True

    def _failed(self, answer: Answer) -> None:
        self._failures += 1
        self.trouble = answer
        if self._failures == 1:
            _log.warning("%s: %s; everything is kept and retried", self._transport.url, answer.reason)
        now = self._failed_at = time.monotonic()
        if answer.verdict is Verdict.REFUSED:
            self._not_before = now + _REFUSED_PAUSE
        else:
            longest = min(_LONGEST_PAUSE, 2.0 ** min(self._failures, 10))
            self._not_before = now + longest * self._random.uniform(0.8, 1.2)
        if answer.retry_after is not None and answer.retry_after <= _INVALID_RETRY_AFTER:
            self._not_before = self._retry_after_end = now + min(answer.retry_after, _LONGEST_RETRY_AFTER)


def _estimate(signal: str, rejected: int, items: int, records: int) -> int:
    """Return the number of items that a backend has rejected.

    The number is exact for log records and spans. For metrics it is an estimate, because the backend counts points: the
    rejected points divided by the average points per item, rounded up, and at most all items.

    Args:
        signal: The signal.
        rejected: Number of points, log records or spans that the backend has rejected.
        items: Number of items in the request.
        records: Number of points, log records or spans in the request.
    """
    if rejected <= 0 or not items:
        return 0
    if signal != "metrics":
        return min(items, rejected)
    return min(items, -(-rejected * items // max(records, 1)))
