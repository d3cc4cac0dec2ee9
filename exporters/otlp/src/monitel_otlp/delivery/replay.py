"""Delivery of the spool of an ended process."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel.os_threads import Event
from monitel_otlp.accounting import Accounting
from monitel_otlp.delivery.disk import Disk
from monitel_otlp.delivery.retry_queue import RetryQueue
from monitel_otlp.delivery.sender import Sender
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.spool import Spool
from monitel_otlp.transport.answer import Verdict
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.transport.answer import Transport

    Progress = Callable[[int, int], object]

_LONGEST_RETRY_AFTER = 60.0  # seconds
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds between two attempts


@dataclass
class ReplayOutcome:
    """Counts of the items of replayed spools.

    Attributes:
        delivered: Items that the backend accepted.
        too_old: Items that the backend refused because of their age; they are in ``rejected/``.
        set_aside: Items that the backend refused for another reason; they are in ``rejected/``.
        set_aside_requests: Number of requests in ``rejected/``, including those without items.
        lost: Items that are neither delivered nor on disk, by reason.
        unreadable: Number of segments, blocks and records that could not be read.
        troubles: For each signal that its backend does not accept now: the reason, and where its requests remain.
        offline: Signals whose requests remain in the spool because they have no endpoint.
    """

    delivered: int = 0
    too_old: int = 0
    set_aside: int = 0
    set_aside_requests: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    troubles: list[str] = field(default_factory=list)
    offline: set[str] = field(default_factory=set)

    def add(self, other: ReplayOutcome) -> None:
        """Add the numbers of another outcome."""
        self.delivered += other.delivered
        self.too_old += other.too_old
        self.set_aside += other.set_aside
        self.set_aside_requests += other.set_aside_requests
        self.lost += other.lost
        self.unreadable += other.unreadable
        self.troubles += other.troubles
        self.offline |= other.offline

    @property
    def complete(self) -> bool:
        """True if everything was delivered."""
        return not (self.set_aside_requests or self.lost or self.unreadable or self.troubles or self.offline)


class _ReplayedSpool(Spool):
    """A spool that counts the refused requests that it sets aside."""

    def __init__(self, folder: Path, outcome: ReplayOutcome, *, foreign: bool) -> None:
        super().__init__(folder, foreign=foreign)
        self._outcome = outcome

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        path = super().set_aside(request, reason)
        if TOO_OLD.search(reason):
            self._outcome.too_old += request.items
        else:
            self._outcome.set_aside += request.items
        self._outcome.set_aside_requests += 1
        return path


def replay(
    folder: Path,
    transports: Mapping[str, Transport],
    *,
    foreign: bool = False,
    pauses: Sequence[float] | None = None,
    stopped: Event | None = None,
    on_progress: Progress = lambda _delivered, _total: None,
) -> ReplayOutcome:
    """Deliver one spool, oldest request first, and remove acknowledged requests.

    Requests of a signal without a transport, or which its backend does not accept now, remain in the spool; the other
    signals are delivered.

    After an interruption or a failure the next call continues with the first request that was not acknowledged. The
    request that was being sent may arrive twice.

    Args:
        folder: A spool.
        transports: The transport of each signal.
        foreign: Use the folder even if it belongs to another user.
        pauses: Seconds between the attempts with one request; by default 1, 2, 4 and 8.
        stopped: When it is set, the delivery ends after the request that is being sent.
        on_progress: Called after each request with two numbers of bytes: removed, and in total.

    Returns:
        The counts, and the reasons why requests remain.

    Raises:
        SpoolError: The folder cannot be used, because its process still runs or because it is unsafe.
        OSError: The folder cannot be read or written.
    """
    outcome = ReplayOutcome()
    stopped = stopped or Event()  # a wait on it also ends with Ctrl-C
    with closing(_ReplayedSpool(folder, outcome, foreign=foreign)) as spool:
        spool.load()
        begin = spool.size_bytes
        for signal in SIGNALS:
            if stopped.is_set() or spool.oldest(signal) is None:
                continue
            if signal not in transports:
                outcome.offline.add(signal)
                continue
            trouble = _replay_signal(
                spool,
                transports[signal],
                signal,
                outcome,
                PAUSES if pauses is None else pauses,
                stopped,
                lambda: on_progress(begin - spool.size_bytes, begin),
            )
            if trouble:
                outcome.troubles.append(trouble)
        outcome.unreadable = spool.problems
    kept = outcome.too_old + outcome.set_aside
    for reason in ("rejected", "unconfirmed"):  # items that were set aside are not lost
        taken = min(kept, outcome.lost[reason])
        outcome.lost[reason] -= taken
        kept -= taken
    outcome.lost = +outcome.lost
    return outcome


def _replay_signal(  # noqa: PLR0917  it is one step of replay()
    spool: Spool,
    transport: Transport,
    signal: str,
    outcome: ReplayOutcome,
    pauses: Sequence[float],
    stopped: Event,
    on_progress: Callable[[], object],
) -> str:
    """Deliver the requests of one signal, and count them.

    Returns:
        The reason why requests remain; empty if none does.
    """
    accounting = Accounting()
    queue = RetryQueue(signal, accounting, Disk(spool), on_progress, online=True, stored=True)
    sender = Sender(queue, transport, Disk(spool), lambda _signal, _seconds: None)
    try:
        _deliver(sender, pauses, stopped, on_progress)
    finally:
        queue.end()
        queue.spill_rest()  # the parts of a request that was split
        account = accounting.account()[signal]
        outcome.delivered += account.delivered
        outcome.lost += Counter(account.dropped)
    outcome.lost += Counter(spool.take_lost(signal))
    if sender.trouble is None:
        return ""
    return f"{transport.url}: {sender.trouble.reason}; the rest is still in {spool.folder}, run this command again"


def _deliver(sender: Sender, pauses: Sequence[float], stopped: Event, on_progress: Callable[[], object]) -> None:
    """Deliver until the queue is empty, or every attempt with the oldest request has failed."""
    for pause in (*pauses, None):
        while not stopped.is_set() and sender.deliver_one():
            on_progress()
        if sender.trouble is None or sender.trouble.verdict is Verdict.REFUSED or pause is None:
            return
        retry_after = sender.trouble.retry_after
        stopped.wait(pause if retry_after is None else min(retry_after, _LONGEST_RETRY_AFTER))
