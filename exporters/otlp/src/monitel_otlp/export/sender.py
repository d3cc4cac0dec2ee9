"""Delivery of the items of one signal, in their order: items i to j of a journal are encoded, sent, and settled."""

from __future__ import annotations

import logging
import marshal
import re
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from monitel.blackbox.journal import Journal
from monitel.blackbox.record import READING, REQUEST, Item
from monitel.process.failures import warn_once
from monitel.process.os_threads import Condition, Event, Lock
from monitel.process.worker import Worker
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.messages.request import REQUESTS, RESOURCES, LogRecordWriter, Request, write_reading, write_spans
from monitel_otlp.metrics.totals import Draft, Totals, WindowMapping
from monitel_otlp.metrics.windows import WindowWriter
from monitel_otlp.transport.answer import Answer, Consequence, Transport

_log = logging.getLogger("monitel.otlp")

REQUEST_BYTES = 3_500_000  # gRPC servers accept 4 MiB
REQUEST_RECORDS = 500
_SMALL_BYTES = 16_384  # the limit of a backend is above that
MOST_REJECTED_BYTES = 1 << 30  # as of the other journals on the disk
#: The journals whose items are sent to the endpoint of each signal, in their order.
JOURNALS_OF = {"metrics": ("metrics", "readings"), "logs": ("logs",), "traces": ("traces", "steps")}

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds after a failure
_REFUSED_PAUSE = 180.0  # seconds
_LONGEST_RETRY_AFTER = 600.0  # seconds; a longer pause that a backend requests is shortened
_INVALID_RETRY_AFTER = 86_400.0  # seconds; a Retry-After beyond a day is a mistake, and is ignored
_DISK_PAUSE = 0.02  # seconds until the disk has loaded what is to be sent
_TRIES = 3  # of a request with which the backend fails; single items that are too large, before all others are
_FEW = 50  # items of a request that is not halved after a failure
_PARTS = 19  # attempts with parts of a rejected request: halves of 500 items find one item in as many
_random = Random()  # noqa: S311  not a secret; the global generator belongs to the application
_VARYING = re.compile(r"\b[\w-]*\d[\w-]*")  # times, numbers and ids in answers that are the same otherwise


def warn_rejected(reason: str, place: str = "") -> None:
    """Log the answer to a rejected request, once for answers that differ only in numbers and ids."""
    message = "a request was rejected%s: %s (further ones with such an answer are only counted)"
    warn_once(_log, message, place, reason, key=_VARYING.sub("", reason))


class Rejected(NamedTuple):
    """A request that a backend has rejected, as its journal keeps it; without items if monitel has made it itself."""

    signal: str
    reason: str
    items: int
    body: bytes

    def append(self, journal: Journal) -> None:
        journal.append(REQUEST, marshal.dumps(tuple(self), 2))

    @staticmethod
    def has_room(journal: Journal) -> bool:
        return sum(each.end for each in journal.segments) < MOST_REJECTED_BYTES


class Outbox:
    """The items of one journal that are being sent, held until they are settled: the journal may drop its oldest.

    ``write`` adds the records of items to a resource, and returns their number. The running totals are those of the
    journal, if it has any.
    """

    def __init__(
        self, journal: Journal, signal: str, resource: bytes, write: Callable[[Sequence[Item], Any, Any], int]
    ) -> None:
        self.journal = journal
        self.signal = signal
        #: Adds the queue size of the pipeline to a list of metrics: Prometheus orders samples by resource, so each
        #: request of metrics needs one with the current time.
        self.write_queue_size: Callable[[Any], object] = lambda _metrics: None
        self._resource = resource
        self._write = write
        self._totals: Totals | None = journal.fold  # type: ignore[assignment]  # no other exporter has one
        self.request: Request | None = None  # to send now
        self._read: Sequence[Item] = ()  # the items of one read that are not settled
        self._most = sys.maxsize  # items of a request; less after one that was too large, or rejected
        # Of the requests of one read: whether one was accepted, or dropped, and attempts since one was rejected.
        self.has_accepted = self.has_dropped = False
        self.attempts = 0
        self.smallest = sys.maxsize  # bytes of a request with a single item that was refused
        self.unanswered = 0  # last item of a request without an answer, which the backend may have accepted

    @property
    def may_be_smaller(self) -> bool:
        """False after several single items of one read were too large, also a small one, and nothing was accepted."""
        return self.has_accepted or self.attempts < _TRIES or self.smallest > _SMALL_BYTES

    @property
    def is_divisible(self) -> bool:
        """False for few items, and if halves have other times than the whole, which the backend may have."""
        request = self.request
        return request is not None and request.number > _FEW and not (request.draft and request.draft.has_moved)

    def head(self) -> Item | None:
        """Return the next item; None if there is none, or the disk has to load it."""
        if not self._read:
            # Readings of one metric are not merged.
            self._read = self.journal.read(1 if self.journal.name == "readings" else REQUEST_RECORDS)
            self._most = sys.maxsize
            self.has_accepted, self.has_dropped, self.attempts, self.smallest = False, False, 0, sys.maxsize
        return self._read[0] if self._read else None

    def next(self, before: int = sys.maxsize) -> Request | None:
        """Return the request to send now, of items before a number; None if :meth:`head` is not one of them."""
        while self.request is None:
            head = self.head()
            if head is None or head.number >= before:
                return None
            last = min(before - 1, head.number + self._most - 1)
            if self.journal.sending >= head.number:
                last = min(last, self.journal.sending)
            if self._totals is not None:
                with self.journal.lock:
                    self._totals.pass_dropped(head.number)
            self._prepare(_split_after(self._read, last)[0])
        # After halves, whose whole may have arrived, comes what follows that.
        self.journal.sending = max(self.journal.sending, self.request.items[-1].last)
        return self.request

    def _prepare(self, items: Sequence[Item]) -> None:
        """Make the request of some items, or of half of them. One that cannot be encoded is settled."""
        try:
            self.request = self.encode(items)
        except Exception:
            number = sum(item.items for item in items)
            if number > 1:
                self._most = number // 2
                return
            warn_once(_log, "an item cannot be encoded, and is dropped (others are only counted)", exc_info=True)
            self.request = Request(self.signal, b"", items, draft=self._draft())
            self.settle(0, encoding=1)
        else:
            if len(self.request.body) > REQUEST_BYTES:
                self.split()

    def encode(self, items: Sequence[Item]) -> Request:
        """Encode some items, in order. Raises if one of them cannot be encoded."""
        message = REQUESTS[self.signal]()
        resource = getattr(message, RESOURCES[self.signal]).add()
        resource.ParseFromString(self._resource)
        draft = self._draft()
        records = self._write(items, resource, draft)
        if records and self.signal == "metrics":
            self.write_queue_size(resource.scope_metrics[0].metrics)
        return Request(self.signal, message.SerializeToString() if records else b"", items, records, draft)

    def _draft(self) -> Draft | None:
        return None if self._totals is None else self._totals.draft()

    def split(self) -> bool:
        """Send half of the items instead; return False for a single item."""
        assert self.request is not None
        if (items := self.request.number) == 1:
            self.smallest = min(self.smallest, len(self.request.body))
            return False
        self._most, self.request = items // 2, None
        return True

    def settle(self, delivered: int, **dropped: int) -> bool:
        """Note the outcome of the items that are sent now, in one step with the totals.

        True if a collector would get other totals from the items alone, so that these are to be written.
        """
        assert self.request is not None
        last, draft = self.request.items[-1].last, self.request.draft
        with self.journal.lock:
            if self._totals is not None and draft is not None:
                self._totals.commit(last, draft)
            self.journal.settle(last, delivered, **dropped)
        self._read, self.request = _split_after(self._read, last)[1], None
        if not delivered:  # the wrong item is found: the rest is sent at once
            self._most = sys.maxsize
        return draft is not None and draft.has_moved

    def give_back(self) -> None:
        self._read, self.request = (), None
        self.journal.give_back()


def _split_after(items: Sequence[Item], last: int) -> tuple[Sequence[Item], Sequence[Item]]:
    index = bisect_right(items, last, key=attrgetter("last"))
    if index == len(items) or items[index].number > last:
        return items[:index], items[index:]
    first, rest = items[index].split(last + 1 - items[index].number)
    return [*items[:index], first], [rest, *items[index + 1 :]]


def outboxes(journals: dict[str, Journal], resource: bytes, mapping: WindowMapping) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, in the order of its journals."""
    writers: dict[str, Any] = {
        "metrics": WindowWriter(mapping).write,
        "readings": write_reading,
        "logs": LogRecordWriter().write,
        "traces": write_spans,
        "steps": write_spans,
    }
    return {
        signal: [Outbox(journals[name], signal, resource, writers[name]) for name in names]
        for signal, names in JOURNALS_OF.items()
    }


def next_of(outboxes: Sequence[Outbox]) -> Outbox | None:
    """Return the outbox with the next request of a signal; None if there is none, or the disk has to load it.

    A reading follows the windows that were recorded before it: Prometheus takes the data of a process in the order of
    time.
    """
    main, *beside = outboxes
    before = sys.maxsize
    for each in beside:
        head = each.head()
        if head is None and each.journal.loading is not None:
            return None
        if head is not None and head.kind == READING:
            before = min(before, int(head.value[2]))
    if main.next(before) is not None:
        return main
    if main.journal.loading is not None and main.journal.settled + 1 < before:
        return None
    return next((each for each in beside if each.next() is not None), None)


def backoff(answer: Answer, failures: int) -> float:
    """Return the seconds until the next attempt, after so many failures in a row, or what the backend asks for."""
    own = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
    if answer.consequence is Consequence.REFUSED:
        own = _REFUSED_PAUSE
    return max(own * _random.uniform(0.8, 1.2), _asked(answer))


def _asked(answer: Answer) -> float:
    asked = answer.retry_after or 0.0
    return min(asked, _LONGEST_RETRY_AFTER) if asked <= _INVALID_RETRY_AFTER else 0.0


class Sender:
    """Sends the items of journals in order, one attempt at a time, and retries them in that order.

    After each failure it pauses (:func:`backoff`), and after the second one it halves the request; only the end makes
    an attempt earlier, unless the backend has asked for the pause. What the backend refuses for a reason that is not in
    the items goes to the disk at once.

    Items are dropped and counted by reason: ``rejected`` (the request is set aside), ``unconfirmed`` (the same, but an
    earlier attempt may have been accepted), ``partial_success``, ``encoding``. ``accepted`` is set when the backend
    accepts a request of the first journal.
    """

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        transport: Transport,
        *,
        note_position: Callable[[], object],
        set_aside: Callable[[Rejected], object],
        accepted: Event | None = None,
        interval: float = 5.0,
    ) -> None:
        self.finished = Event()  # set when the last attempts were made
        self.seconds: deque[float] = deque(maxlen=10_000)  # of attempts, for whoever takes them out
        self.attempts = self.failures = 0  # in total; in a row
        self.trouble: Answer | None = None  # the last failure with the oldest request
        self.tries = _TRIES  # of a request with which the backend fails
        self._outboxes = outboxes
        self._transport = transport
        self._note_position = note_position
        self._set_aside = set_aside
        self._accepted = accepted or Event()
        self._interval = interval
        name = f"monitel-otlp-{outboxes[0].signal}"
        self.worker = Worker(name, self._send_waiting, interval, suppress_instrumentation, transport.close)
        self.sending = Lock()  # held during attempts: those of the thread, and of the caller at the exit
        self._settled = Condition()
        self._deadline: float | None = None
        self._not_before = self._asked_until = 0.0  # ends of pauses
        self._tries = 0  # failed attempts of the oldest request with the consequence FAILED
        self._is_hopeless = False  # the backend has rejected all items of a request, and accepted none since

    # ---- the thread

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
        self.worker.run_now()

    def stop(self) -> None:
        """End the thread after the current attempt, and close the connection."""
        self.finished.set()
        self.worker.stop()
        if not self.worker.started:
            self._transport.close()

    def _send_waiting(self) -> float:
        """Send until there is nothing, or a pause; return the seconds until the next call."""
        with self.sending:
            if self.finished.is_set():
                return self._interval
            is_last = self._deadline is not None
            pause = (self._asked_until if is_last else self._not_before) - time.monotonic()
            if pause <= 0:
                pause = self.deliver(self.finished)
                with self._settled:  # what was dropped is settled when it is passed over
                    self._settled.notify_all()
            waits_for_disk = self.trouble is None and not all(outbox.journal.is_empty for outbox in self._outboxes)
            if is_last and not (waits_for_disk and time.monotonic() < (self._deadline or 0.0)):
                self.finished.set()
                for outbox in self._outboxes:
                    outbox.give_back()
            if waits_for_disk:
                return _DISK_PAUSE
            return pause if self.trouble else self._interval

    # ---- requests and their answers

    def deliver(self, stopped: Event, on_settled: Callable[[], object] = lambda: None) -> float:
        """Send until nothing is left, an attempt fails, or ``stopped`` is set; return the seconds to wait then.

        It is zero if the disk has to load what is to be sent.
        """
        while not stopped.is_set() and (outbox := next_of(self._outboxes)) is not None:
            if not self._send(outbox):
                break
            on_settled()
        return 0.0 if self.trouble is None else max(0.0, self._not_before - time.monotonic())

    def _send(self, outbox: Outbox) -> bool:
        """Send a request; return False if it is to be sent again."""
        request = outbox.request
        assert request is not None
        if not request.body:  # nothing is to be sent for windows without aggregations
            self._settle(outbox, request.number)
            return True
        self._note_position()
        answer = self._attempt(outbox, request)
        if answer is None:
            return False
        consequence = answer.consequence
        if consequence is Consequence.FAILED:
            self._tries += 1
            consequence = Consequence.REJECTED if outbox.attempts or self._tries >= self.tries else Consequence.RETRY
        if consequence in {Consequence.RETRY, Consequence.REFUSED}:
            self._failed(outbox, answer)
            return False
        if self.failures:
            _log.warning("%s: delivering again", self._transport.url)
        if consequence is Consequence.DELIVERED:
            self._acknowledge(outbox, request, answer)
        elif consequence is Consequence.TOO_LARGE and outbox.may_be_smaller and outbox.split():
            outbox.unanswered = 0  # the backend has not accepted the whole
        elif request.items[0].number <= outbox.unanswered:
            self._reject(outbox, request, answer, "unconfirmed")
        elif not self._search(outbox, request, answer):
            self._reject(outbox, request, answer, "rejected")
        self._recovered()
        return True

    def _attempt(self, outbox: Outbox, request: Request) -> Answer | None:
        """Make one attempt; return None if the deadline has passed."""
        remaining = None if self._deadline is None else self._deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return None
        began = time.perf_counter()
        answer = self._transport.send(request, remaining)
        self.attempts += 1
        self.seconds.append(time.perf_counter() - began)
        if not answer.answered:
            outbox.unanswered = max(outbox.unanswered, request.items[-1].last)
        if answer.closed:  # the next one is on a new connection
            return self._attempt(outbox, request)
        return answer

    def _failed(self, outbox: Outbox, answer: Answer) -> None:
        self.failures += 1
        if self.failures > 1 and outbox.is_divisible:
            outbox.split()  # for a slow or broken network, or a limit of rate
        self.trouble = answer
        if self.failures == 1:
            _log.warning("%s: %s; everything is kept and retried", self._transport.url, answer.reason)
        now = time.monotonic()
        self._asked_until, self._not_before = now + _asked(answer), now + backoff(answer, self.failures)
        for each in self._outboxes:
            each.journal.is_refused = answer.consequence is Consequence.REFUSED

    def _recovered(self) -> None:
        self.failures = self._tries = 0
        self.trouble = None
        self._not_before = self._asked_until = 0.0
        for outbox in self._outboxes:
            outbox.journal.is_refused = False

    def _settle(self, outbox: Outbox, delivered: int, **dropped: int) -> None:
        if outbox.settle(delivered, **dropped):
            with suppress(OSError):  # without room for them a point may have another time after a kill
                outbox.journal.before_remove()
        self._note_position()
        with self._settled:
            self._settled.notify_all()

    def _acknowledge(self, outbox: Outbox, request: Request, answer: Answer) -> None:
        left_out, url = _estimate(answer.rejected, request), self._transport.url
        if answer.rejected:
            _log.warning("%s accepted a request but rejected %d records: %s", url, answer.rejected, answer.reason)
        elif answer.reason:
            warn_once(_log, "%s accepted a request with a message: %s", url, answer.reason, key=url)
        outbox.has_accepted, self._is_hopeless = True, False
        if outbox.attempts:
            outbox.attempts += 1
        self._settle(outbox, request.number - left_out, partial_success=left_out)
        if outbox is self._outboxes[0]:
            self._accepted.set()

    def _reject(self, outbox: Outbox, request: Request, answer: Answer, reason: str) -> None:
        """Settle rejected items, of which the backend may report that it has stored some, and set them aside."""
        rejected = _estimate(answer.rejected, request) or request.number
        counted = rejected if outbox.journal.name == request.signal else 0  # data of the pipeline itself are not items
        text = f"{self._transport.url}: {answer.reason}"
        self._set_aside(Rejected(request.signal, text, counted, request.body))
        self._settle(outbox, request.number - rejected, **{reason: rejected})

    def _search(self, outbox: Outbox, request: Request, answer: Answer) -> bool:
        """Search for the rejected items of a request by halves; return False if they are to be settled as rejected.

        When one item is found, the rest is sent at once. If that is rejected, too, and no part was accepted, all of it
        is rejected, and so are the next requests until one is accepted.
        """
        outbox.attempts += 1
        self._is_hopeless = self._is_hopeless or (outbox.has_dropped and not outbox.has_accepted)
        is_over = self._is_hopeless or outbox.attempts > _PARTS or request.number <= answer.rejected
        outbox.has_dropped = is_over or not outbox.split()
        return not outbox.has_dropped


def _estimate(rejected: int, request: Request) -> int:
    """Return the number of items for a number of rejected points, log records or spans.

    For metrics it is an estimate: the rejected points divided by the average points per item, rounded up.
    """
    if rejected > 0 and request.signal == "metrics":
        rejected = -(-rejected * request.number // max(request.records, 1))
    return max(0, min(request.number, rejected))
