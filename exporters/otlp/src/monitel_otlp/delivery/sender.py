"""The thread that sends the requests of one signal, one attempt at a time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from monitel.os_threads import Event, Lock
from monitel_otlp.delivery.request_splitting import estimate_rejected, isolate, split, without_stored
from monitel_otlp.delivery.retry_queue import Outcome, RetryQueue, Waiting
from monitel_otlp.spool.spool import SpoolError
from monitel_otlp.threads.worker import Worker
from monitel_otlp.transport.answer import Answer, Transport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.delivery.disk import Disk
    from monitel_otlp.messages.request import FrozenRequest

_log = logging.getLogger("monitel.otlp")

_LONGEST_PAUSE = 30.0
_REFUSED_PAUSE = 60.0
_LONGEST_RETRY_AFTER = 600.0  # a longer pause that a backend requests is shortened
_INVALID_RETRY_AFTER = 86_400.0  # a Retry-After beyond a day is a mistake, and is ignored
_URGENT_PAUSE = 1.0  # between two attempts of a flush
_TRIES = 3  # of a request with which the backend fails


class Sender:
    """Sends requests in the order of creation, and retries them in that order.

    After each failure it pauses, longer each time. A flush shortens the pause to a second, but not a pause that the
    backend has requested by Retry-After. Dropped items are counted by reason: ``rejected`` (the request is in
    ``rejected/`` in the spool), ``unconfirmed`` (rejected, but an earlier attempt may have been accepted),
    ``partial_success``.

    Args:
        queue: The queue of requests.
        transport: Makes the attempts.
        disk: Writes rejected requests.
        attempted: Called with the signal and the seconds of each attempt.
    """

    def __init__(
        self, queue: RetryQueue, transport: Transport, disk: Disk, attempted: Callable[[str, float], None]
    ) -> None:
        self.signal = queue.signal
        self._queue = queue
        self._transport = transport
        self._disk = disk
        self._attempted = attempted
        self._worker = Worker(f"monitel-otlp-{queue.signal}", self._send_waiting, ended=transport.close)
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
        self.trouble: Answer | None = None  # the last failure with the oldest request

    def wake(self, *, urgent: bool = False) -> None:
        """Send the waiting requests. The first call starts the thread.

        Args:
            urgent: Shorten the pause after a failure.
        """
        self._urgent = self._urgent or urgent
        self._worker.start()
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

    def stop(self) -> None:
        """End the thread after the current attempt, and close the connection."""
        self._worker.stop()
        if not self._worker.started:
            self._transport.close()

    def deliver_one(self) -> bool:
        """Make an attempt with the oldest request, and return True if the request is settled."""
        waiting = self._queue.oldest()
        if waiting is None:
            return False
        answer = self._attempt(waiting.request)
        if answer is None:
            self._queue.keep()
            return False
        return self._settle(waiting, answer)

    def _send_waiting(self) -> float | None:
        with self._sending:
            if self.finished.is_set():  # the rest is written to disk, and would arrive twice
                return None
            last = self._deadline is not None
            pause = self._pause()
            if pause <= 0:
                while self.deliver_one():
                    pass
                self._urgent = False
                pause = self._pause()
            if last:
                self.finished.set()
            return pause if self.trouble else None

    def _pause(self) -> float:
        """Return the seconds until the next attempt is allowed."""
        now = time.monotonic()
        own = min(self._not_before, self._failed_at + _URGENT_PAUSE) if self._urgent else self._not_before
        if self._deadline is not None:
            own = 0.0
        return max(own, self._retry_after_end) - now

    def _attempt(self, request: FrozenRequest) -> Answer | None:
        """Make one attempt; return None if the deadline has passed."""
        remaining = None if self._deadline is None else self._deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return None
        began = time.perf_counter()
        try:
            answer = self._transport.send(request, remaining)
        except Exception as error:  # counts as a failed attempt
            answer = Answer(Verdict.RETRY, type(error).__name__, answered=False)
        self._attempted(self.signal, time.perf_counter() - began)
        return answer

    def _settle(self, waiting: Waiting, answer: Answer) -> bool:
        """Apply the answer; return True if the next request can be sent."""
        if answer.verdict is Verdict.FAILED:
            self._tries += 1
            verdict = Verdict.REJECTED if self._tries >= _TRIES else Verdict.RETRY
            answer = replace(answer, verdict=verdict)
        if answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
            self._unanswered = self._unanswered or not answer.answered
            self._failed(answer)
            self._queue.keep()
            return False
        if self._failures:
            _log.warning("%s: delivering again", self._transport.url)
        self._queue.settle(waiting, self._outcome(waiting.request, answer))
        self._failures = self._tries = 0
        self.trouble = None
        self._not_before = self._retry_after_end = 0.0
        self._unanswered = False
        return True

    def _outcome(self, request: FrozenRequest, answer: Answer) -> Outcome:
        if answer.verdict is Verdict.DELIVERED:
            return self._delivered(request, answer)
        if answer.verdict is Verdict.TOO_LARGE and (halves := split(request)):
            return Outcome(parts=halves)
        if self._unanswered:
            part = without_stored(request, answer.rejected)
            self._set_aside(part, answer)
            return Outcome(request.items - part.items, dropped={"unconfirmed": part.items})
        found = isolate(request, self._attempt, answer)
        dropped: Counter[str] = Counter()
        for part, refusal in found.rejected:
            self._set_aside(part, refusal)
            dropped["rejected"] += part.items
        if found.left_out:
            dropped["partial_success"] += found.left_out
        return Outcome(found.delivered, found.synthetic, dict(dropped), found.unsent)

    def _delivered(self, request: FrozenRequest, answer: Answer) -> Outcome:
        left_out = estimate_rejected(request, answer.rejected)
        if answer.rejected:
            url = self._transport.url
            _log.warning("%s accepted a request but rejected %d records: %s", url, answer.rejected, answer.reason)
        return Outcome(request.items - left_out, request.synthetic, {"partial_success": left_out} if left_out else {})

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

    def _set_aside(self, request: FrozenRequest, answer: Answer) -> None:
        def write() -> None:
            try:
                path = self._disk.spool.set_aside(request, answer.reason)
            except (OSError, SpoolError) as error:
                _log.warning("%s rejected a request (%s), which cannot be written: %s", url, answer.reason, error)
            else:
                _log.warning("%s rejected a request (%s); it is in %s", url, answer.reason, path)

        url = self._transport.url
        self._disk.submit(write)
