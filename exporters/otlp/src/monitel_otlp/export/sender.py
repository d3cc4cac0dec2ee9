"""The thread that sends the items of one signal, in their order, one attempt at a time."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from monitel.process.os_threads import Condition, Event, Lock
from monitel.process.worker import Worker
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.export.requests import Search, next_of
from monitel_otlp.messages.request import count
from monitel_otlp.transport.answer import Answer, Transport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monitel_otlp.export.requests import Outbox
    from monitel_otlp.messages.request import Request

_log = logging.getLogger("monitel.otlp")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds after a failure
_REFUSED_PAUSE = 180.0  # seconds
_LONGEST_RETRY_AFTER = 600.0  # seconds; a longer pause that a backend requests is shortened
_INVALID_RETRY_AFTER = 86_400.0  # seconds; a Retry-After beyond a day is a mistake, and is ignored
_DISK_PAUSE = 0.02  # seconds until the disk has loaded what is to be sent
_TRIES = 3  # of a request with which the backend fails
_random = Random()  # noqa: S311  not a secret; the global generator belongs to the application


def backoff(answer: Answer, failures: int) -> float:
    """Return the seconds until the next attempt: the pause that the backend has requested, if that is longer than ours.

    Args:
        answer: The last answer.
        failures: The number of attempts that have failed in a row.
    """
    own = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
    if answer.verdict is Verdict.REFUSED:
        own = _REFUSED_PAUSE
    return max(own * _random.uniform(0.8, 1.2), _asked(answer))


def _asked(answer: Answer) -> float:
    asked = answer.retry_after or 0.0
    return min(asked, _LONGEST_RETRY_AFTER) if asked <= _INVALID_RETRY_AFTER else 0.0


class Sender:
    """Sends the items of journals in order, and retries them in that order.

    After each failure it pauses, longer each time, and at least as long as the backend has requested by Retry-After.
    Only the end makes an attempt earlier, unless the backend has requested the pause. What the backend refuses for a
    reason that is not in the items goes to the disk at once, and is tried again every few minutes.

    Items are dropped and counted by reason: ``rejected`` (the request is set aside), ``unconfirmed`` (the same, but an
    earlier attempt may have been accepted), ``partial_success``, ``encoding``.

    Args:
        outboxes: The journals of the signal.
        transport: Makes the attempts.
        note_position: Called before a request is sent, and when its items are settled.
        set_aside: Called with a rejected request, its number of items in accounts, and the reason.
        accepted: Is set when the backend accepts a request of the first journal.
        interval: Seconds between two looks at the journals.

    Attributes:
        finished: Set when the last attempts were made.
        seconds: The duration of each attempt, for whoever takes them out.
        attempts: Number of attempts so far.
        failures: Number of attempts that have failed in a row.
        trouble: The last failure with the oldest request; None if it has not failed.
    """

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        transport: Transport,
        *,
        note_position: Callable[[], object],
        set_aside: Callable[[Request, int, str], object],
        accepted: Event | None = None,
        interval: float = 5.0,
    ) -> None:
        self.finished = Event()
        self.seconds: deque[float] = deque(maxlen=10_000)
        self.attempts = self.failures = 0
        self.trouble: Answer | None = None
        self._outboxes = outboxes
        self._transport = transport
        self._note_position = note_position
        self._set_aside = set_aside
        self._accepted = accepted or Event()
        self._interval = interval
        name = f"monitel-otlp-{outboxes[0].encoder.signal}"
        self._worker = Worker(name, self._send_waiting, interval, suppress_instrumentation, transport.close)
        self._sending = Lock()  # the thread and the caller at the end of the process must not send together
        self._settled = Condition()
        self._deadline: float | None = None
        self._not_before = self._asked_until = 0.0  # ends of pauses
        self._tries = 0  # failed attempts of the oldest request with the verdict FAILED
        self._unanswered = False  # the backend may have accepted the oldest request
        self._is_hopeless = False  # the backend has rejected all items of a request, and accepted none since

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def wake(self) -> None:
        """Send what waits now, unless there is a pause after a failure."""
        self._worker.wake()

    def flush(self, ends: Mapping[str, int], deadline: float) -> bool:
        """Wait until all items before some numbers are settled, by the name of the journal; return False if not."""
        journals = [each.journal for each in self._outboxes]
        with self._settled:
            while any(each.settled < ends[each.name] - 1 for each in journals):
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                self._settled.wait(left)
        return True

    def finish(self, deadline: float) -> None:
        """Make the last attempts until a monotonic deadline; in the caller's thread, if CPython has refused another."""
        self._deadline = deadline
        if self._worker.started:
            self.wake()
        else:
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

    def deliver(self, stopped: Event, on_settled: Callable[[], object] = lambda: None) -> float:
        """Send until nothing is left, an attempt fails, or ``stopped`` is set; return the seconds to wait then.

        It is zero if the disk has to load what is to be sent.
        """
        while not stopped.is_set() and (outbox := next_of(self._outboxes)) is not None:
            if not self._send(outbox):
                break
            on_settled()
        return 0.0 if self.trouble is None else max(0.0, self._not_before - time.monotonic())

    def _send_waiting(self) -> float:
        with self._sending:
            if self.finished.is_set():
                return self._interval
            is_last = self._deadline is not None
            pause = (self._asked_until if is_last else self._not_before) - time.monotonic()
            if pause <= 0:
                pause = self.deliver(self.finished)
                with self._settled:  # what was dropped is settled when it is passed over
                    self._settled.notify_all()
            waits_for_disk = self.trouble is None and not all(outbox.is_empty for outbox in self._outboxes)
            if is_last and not (waits_for_disk and time.monotonic() < (self._deadline or 0.0)):
                self.finished.set()
                for outbox in self._outboxes:
                    outbox.give_back()
            if waits_for_disk:
                return _DISK_PAUSE
            return pause if self.trouble else self._interval

    def _send(self, outbox: Outbox) -> bool:
        """Send a request; return False if it is to be sent again."""
        request, search = outbox.request, outbox.search
        assert request is not None
        if not request.body:  # nothing is to be sent for windows without aggregations
            self._settle(outbox, request.sent)
            return True
        self._note_position()
        answer = self._attempt(request)
        if answer is None:
            return False
        if answer.verdict is Verdict.FAILED:
            self._tries += 1
            is_rejected = search is not None or self._tries >= _TRIES
            answer = replace(answer, verdict=Verdict.REJECTED if is_rejected else Verdict.RETRY)
        if answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
            self._failed(answer)
            return False
        if self.failures:
            _log.warning("%s: delivering again", self._transport.url)
        if answer.verdict is Verdict.DELIVERED:
            self._acknowledge(outbox, request, answer)
        elif answer.verdict is Verdict.TOO_LARGE and outbox.split():
            pass
        elif self._unanswered:
            self._reject(outbox, request, answer, "unconfirmed")
        elif not self._search(outbox, request, answer):
            self._reject(outbox, request, answer, "rejected")
            outbox.join()
        self._recovered()
        return True

    def _attempt(self, request: Request) -> Answer | None:
        """Make one attempt; return None if the deadline has passed."""
        remaining = None if self._deadline is None else self._deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return None
        began = time.perf_counter()
        try:
            answer = self._transport.send(request, remaining)
        except Exception as error:  # counts as a failed attempt
            answer = Answer(Verdict.RETRY, type(error).__name__, answered=False)
        self.attempts += 1
        self.seconds.append(time.perf_counter() - began)
        return answer

    def _failed(self, answer: Answer) -> None:
        self.failures += 1
        self._unanswered = self._unanswered or not answer.answered
        self.trouble = answer
        if self.failures == 1:
            _log.warning("%s: %s; everything is kept and retried", self._transport.url, answer.reason)
        now = time.monotonic()
        self._asked_until, self._not_before = now + _asked(answer), now + backoff(answer, self.failures)
        for outbox in self._outboxes:
            outbox.journal.is_refused = answer.verdict is Verdict.REFUSED

    def _recovered(self) -> None:
        self.failures = self._tries = 0
        self.trouble = None
        self._not_before = self._asked_until = 0.0
        self._unanswered = False
        for outbox in self._outboxes:
            outbox.journal.is_refused = False

    def _settle(self, outbox: Outbox, delivered: int, **dropped: int) -> None:
        outbox.settle(delivered, **dropped)
        self._note_position()
        with self._settled:
            self._settled.notify_all()

    def _acknowledge(self, outbox: Outbox, request: Request, answer: Answer) -> None:
        left_out = _estimate(answer.rejected, request)
        if answer.rejected:
            url = self._transport.url
            _log.warning("%s accepted a request but rejected %d records: %s", url, answer.rejected, answer.reason)
        if outbox.search is not None:
            outbox.search.has_accepted = True
            outbox.search.left -= 1
        self._is_hopeless = False
        self._settle(outbox, request.sent - left_out, partial_success=left_out)
        if outbox is self._outboxes[0]:
            self._accepted.set()

    def _reject(self, outbox: Outbox, request: Request, answer: Answer, reason: str) -> None:
        """Settle rejected items, of which the backend may report that it has stored some, and set them aside."""
        rejected = _estimate(answer.rejected, request) or request.sent
        counted = rejected if outbox.journal.name == request.signal else 0  # data of the pipeline itself are not items
        self._set_aside(request, counted, f"{self._transport.url}: {answer.reason}")
        self._settle(outbox, request.sent - rejected, **{reason: rejected})

    def _search(self, outbox: Outbox, request: Request, answer: Answer) -> bool:
        """Search for the rejected items of a request by halves, with a limited number of attempts.

        When one item is found, the rest of the request is sent at once. If that is rejected, too, and no part of the
        request was accepted, the whole request counts as rejected; and so do the next ones until one is accepted. Items
        are not split if the backend reports that it has stored none of them.

        Returns:
            False if the items are to be settled as rejected.
        """
        search = outbox.search = outbox.search or Search(request.items[-1].last)
        self._is_hopeless = self._is_hopeless or (search.has_rejected and not search.has_accepted)
        search.left -= 1
        if search.left < 0 or self._is_hopeless or 0 < count(request.items) <= answer.rejected or not outbox.split():
            search.has_rejected = True
            return False
        return True


def _estimate(rejected: int, request: Request) -> int:
    """Return the number of items of a request that a backend has rejected.

    It is exact for log records and spans. For metrics it is an estimate, because the backend counts points: the
    rejected points divided by the average points per item, rounded up, and at most all items.

    Args:
        rejected: Number of points, log records or spans that the backend has rejected.
        request: The request.
    """
    if rejected <= 0 or not request.sent:
        return 0
    if request.signal != "metrics":
        return min(request.sent, rejected)
    return min(request.sent, -(-rejected * request.sent // max(request.records, 1)))
