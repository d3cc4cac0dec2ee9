"""Delivery of the record of an ended process, in place."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import REJECTED
from monitel.blackbox.folder import FolderError
from monitel.blackbox.journal import CORRUPT
from monitel.blackbox.record import SIGNALS
from monitel.os_threads import Event
from monitel_otlp.export import rejected
from monitel_otlp.export.ended import damaged_ends, oldest_first, outboxes_of, take, unsettled
from monitel_otlp.export.sender import Sender, backoff
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Verdict
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from monitel.blackbox.account import Account
    from monitel.blackbox.folder import Folder
    from monitel.blackbox.recovery import Dead
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.transport.answer import Answer, Transport

    Progress = Callable[[int, int], object]

_log = logging.getLogger("monitel.otlp")

_TRIES = 5  # attempts with one request
_LONGEST_PAUSE = 60.0  # seconds between two of them


@dataclass
class ReplayOutcome:
    """Counts of the items of records.

    Attributes:
        delivered: Items that the backend accepted.
        too_old: Items that the backend refused because of their age; they are in ``rejected.log``.
        set_aside: Items that the backend refused for another reason; they are in ``rejected.log``.
        set_aside_requests: Number of requests in ``rejected.log``, including those without items.
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
        with suppress(OSError, FolderError):  # what is rejected should outlive a restart of the machine
            dead.move()
        if rejected.append(_folders(dead)[0], signal=request.signal, body=request.body, items=items, reason=reason):
            counts.count_set_aside(items, reason)
        else:
            counts.lost["spool_full"] += items

    for folder in _folders(dead):
        rejected.trim(folder)

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
            rest = f"the rest is still in {(dead.disk or dead.box).path}, run this command again"  # type: ignore[union-attr]
            counts.troubles.append(f"{transports[signal].url}: {sender.trouble.reason}; {rest}")
    dead.tend()
    names = {name for folder in _folders(dead) for name in folder.names()}
    if dead.is_delivered and REJECTED not in names and not any(name.endswith(CORRUPT) for name in names):
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


def _folders(dead: Dead) -> list[Folder]:
    return [each for each in (dead.disk, dead.box) if each is not None]


def deliver_rejected(
    dead: Dead, transports: Mapping[str, Transport], outcome: ReplayOutcome | None = None
) -> ReplayOutcome:
    """Send the requests that a backend has rejected again, as they are, and remove those that are accepted.

    Raises:
        OSError: The file cannot be read or written.
    """
    counts = outcome or ReplayOutcome()
    for folder in _folders(dead):
        delivered, refusing = 0, set[str]()
        try:
            for each in rejected.read(folder):
                if each.signal not in transports:
                    counts.offline.add(each.signal)
                elif each.signal not in refusing:
                    answer = _send_rejected(Request(each.signal, each.body), transports[each.signal])
                    if answer.verdict is Verdict.DELIVERED:
                        left_out = min(answer.rejected, each.items)
                        counts.delivered += each.items - left_out
                        counts.lost += Counter(partial_success=left_out)
                        rejected.mark(folder, each)  # at once: after a kill it is not sent again
                        delivered += 1
                    elif answer.verdict in {Verdict.RETRY, Verdict.REFUSED}:
                        refusing.add(each.signal)
                        rest = f"the rest is still in {folder.path}, run this command again"
                        counts.troubles.append(f"{transports[each.signal].url}: {answer.reason}; {rest}")
                    else:
                        counts.count_set_aside(each.items, answer.reason)
        finally:
            if delivered:
                rejected.compact(folder)
    return counts


def _send_rejected(request: Request, transport: Transport) -> Answer:
    pause = Event()  # a wait on it also ends with Ctrl-C
    for failures in range(1, _TRIES):
        answer = transport.send(request)
        if answer.verdict is not Verdict.RETRY:
            return answer
        pause.wait(min(backoff(answer, failures), _LONGEST_PAUSE))
    return transport.send(request)
