"""Delivery of the record of an ended process, in place."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel.blackbox.record import CORRUPT, REJECTED, SIGNALS
from monitel.process.os_threads import Event
from monitel_otlp.export import rejected
from monitel_otlp.export.ended import damaged_ends, oldest_first, outboxes_of, take, unsettled
from monitel_otlp.export.rejected import Rejected
from monitel_otlp.export.sender import Sender, backoff
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Verdict
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from monitel.blackbox.account import Account
    from monitel.blackbox.recovery import Dead
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.transport.answer import Transport

    Progress = Callable[[int, int], object]

_log = logging.getLogger("monitel.otlp")

_TRIES = 5  # attempts with one request
_LONGEST_PAUSE = 60.0  # seconds between two of them


@dataclass
class ReplayOutcome:
    """Counts of the items of records.

    Attributes:
        delivered: Items that the backend accepted.
        too_old: Items that the backend refused because of their age; they are in the spool.
        set_aside: Items that the backend refused for another reason; they are in the spool.
        set_aside_requests: Number of requests in the spool, including those without items.
        lost: Items that are neither delivered nor on disk, by reason.
        unreadable: Number of items that could not be read.
        troubles: For each signal that its backend does not accept now: the reason, and where its items remain.
        offline: Signals whose items remain because they have no endpoint.
    """

    delivered: int = 0
    too_old: int = 0
    set_aside: int = 0
    set_aside_requests: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    troubles: list[str] = field(default_factory=list)
    offline: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """True if everything was delivered."""
        return not (self.set_aside_requests or self.lost or self.unreadable or self.troubles or self.offline)

    def add(self, account: Account) -> None:
        """Add the outcome of the items of a signal."""
        lost = Counter(account.dropped)
        self.unreadable += lost.pop("unreadable", 0)
        for reason in ("rejected", "unconfirmed"):  # they were set aside, and are not lost
            lost.pop(reason, None)
        self.delivered += account.delivered
        self.lost += lost

    def count_set_aside(self, items: int, reason: str) -> None:
        """Count a request that was refused."""
        if TOO_OLD.search(reason):
            self.too_old += items
        else:
            self.set_aside += items
        self.set_aside_requests += 1


def deliver(
    dead: Dead,
    transports: Mapping[str, Transport],
    outcome: ReplayOutcome | None = None,
    *,
    tries: int = _TRIES,
    stopped: Event | None = None,
    on_progress: Progress = lambda _settled, _total: None,
) -> ReplayOutcome:
    """Deliver a record, oldest items first, and remove it when everything is delivered.

    Items of a signal without a transport, or which its backend does not accept now, remain; the other signals are
    delivered. After an interruption the next call continues with the first request that was not acknowledged, which may
    arrive twice.

    Args:
        dead: The record.
        transports: The transport of each signal.
        outcome: The counts of earlier records, to which those of this one are added.
        tries: The number of attempts with one request.
        stopped: When it is set, the delivery ends after the request that is being sent.
        on_progress: Called after each request with two numbers of items: settled, and in total.

    Returns:
        The counts, and the reasons why items remain.

    Raises:
        OSError: The record cannot be read or written.
    """
    counts, stopped = outcome or ReplayOutcome(), stopped or Event()  # a wait on it also ends with Ctrl-C
    counts.unreadable += damaged_ends(dead)
    outboxes, total = outboxes_of(dead), unsettled(dead)

    def set_aside(request: Request, items: int, reason: str) -> None:
        if rejected.is_full(dead.journals[REJECTED]):
            counts.lost["spool_full"] += items
        else:
            rejected.store(dead, Rejected(request.signal, reason, items, request.body))
            counts.count_set_aside(items, reason)

    for signal in SIGNALS:
        journals = [each.journal for each in outboxes[signal]]
        if stopped.is_set() or all(each.settled >= each.next - 1 for each in journals):
            continue
        if signal not in transports:
            counts.offline.add(signal)
            continue
        sender = Sender(outboxes[signal], transports[signal], note_position=dead.note_position, set_aside=set_aside)
        try:
            _send(dead, sender, tries, stopped, lambda: on_progress(total - unsettled(dead), total))
        finally:
            counts.add(journals[0].account())
        if sender.trouble is not None:
            counts.troubles.append(_trouble(dead, transports[signal], sender.trouble))
    dead.tend()
    folders = [each for each in (dead.disk, dead.box) if each is not None]
    if dead.is_delivered and not any(name.endswith(CORRUPT) for folder in folders for name in folder.names()):
        dead.remove()
    return counts


def deliver_marked(folders: Iterable[Path], settings: Settings, roots: Sequence[Path], stopped: Event) -> None:
    """Deliver records, oldest first, until the backend does not accept a request at the first attempt. Never raises.

    A record stays if it is in use or cannot be read. Links are not followed.

    Args:
        folders: Boxes and spool folders. Only those with the mark of the endpoints are delivered.
        settings: The endpoints.
        roots: Folders of boxes.
        stopped: When it is set, the delivery ends after the request that is being sent.
    """
    marked = [each for each in folders if settings.mark and each.name.endswith(f"-{settings.mark}")]
    with ExitStack() as opened:
        transports = make_transports(settings) if marked else {}
        for transport in transports.values():
            opened.callback(transport.close)
        for path in oldest_first(each for each in marked if not each.is_symlink()):
            if stopped.is_set():
                return
            try:
                with closing(take(path, roots)) as dead:
                    outcome = deliver(dead, transports, tries=1, stopped=stopped)
            except Exception as error:  # even if its values are senseless
                _log.debug("%s was not delivered: %s", path, error)
                continue
            _log.info("delivered %d items that an earlier process had left in %s", outcome.delivered, path)
            if outcome.troubles:  # the next one would take as long
                return


def _send(dead: Dead, sender: Sender, tries: int, stopped: Event, on_settled: Callable[[], object]) -> None:
    """Deliver until nothing is left, or every attempt with the oldest request has failed."""
    while not stopped.is_set():
        pause = sender.deliver(stopped, on_settled)
        if sender.trouble is not None:
            if sender.trouble.verdict is Verdict.REFUSED or sender.failures >= tries:
                return
            stopped.wait(min(pause, _LONGEST_PAUSE))
        elif not any(each.loading for each in dead.journals.values()):
            return
        dead.tend()


def deliver_rejected(
    dead: Dead, transports: Mapping[str, Transport], outcome: ReplayOutcome | None = None
) -> ReplayOutcome:
    """Send the requests that a backend has rejected again, as they are, and remove those that are accepted.

    Raises:
        OSError, FolderError: The spool folder cannot be read or written.
    """
    counts, refusing = outcome or ReplayOutcome(), set[str]()
    for each in rejected.take(dead):
        answer = Answer(Verdict.REFUSED)
        if each.signal not in transports:
            counts.offline.add(each.signal)
        elif each.signal not in refusing:
            answer = _send_rejected(Request(each.signal, each.body), transports[each.signal])
        if answer.verdict is Verdict.DELIVERED:
            left_out = min(answer.rejected, each.items)
            counts.delivered += each.items - left_out
            counts.lost += Counter(partial_success=left_out)
            continue
        rejected.store(dead, each)  # behind the others, also in a full journal: it was there before
        if answer.verdict not in {Verdict.RETRY, Verdict.REFUSED}:
            counts.count_set_aside(each.items, answer.reason)
        elif each.signal in transports and each.signal not in refusing:
            refusing.add(each.signal)
            counts.troubles.append(_trouble(dead, transports[each.signal], answer))
    dead.tend()
    return counts


def _trouble(dead: Dead, transport: Transport, answer: Answer) -> str:
    path = (dead.disk or dead.box).path  # type: ignore[union-attr]  # there is one
    return f"{transport.url}: {answer.reason}; the rest is still in {path}, run this command again"


def _send_rejected(request: Request, transport: Transport) -> Answer:
    pause = Event()  # a wait on it also ends with Ctrl-C
    for failures in range(1, _TRIES):
        answer = transport.send(request)
        if answer.verdict is not Verdict.RETRY:
            return answer
        pause.wait(min(backoff(answer, failures), _LONGEST_PAUSE))
    return transport.send(request)
