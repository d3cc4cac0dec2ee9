"""Delivery of one spool that an ended process has left."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from monitel_otlp.accounting import Accounting
from monitel_otlp.delivery.disk import Disk
from monitel_otlp.delivery.retry_queue import RetryQueue
from monitel_otlp.delivery.sender import Sender
from monitel_otlp.request import SIGNALS
from monitel_otlp.spool.spool import Spool
from monitel_otlp.transport.answer import Verdict
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.transport.answer import Transport

    Progress = Callable[[int, int], object]

_never = Event()  # never set: a pause that Ctrl-C ends
_LONGEST_ASKED = 60.0  # seconds
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds after which a request is tried again


@dataclass
class Outcome:
    """What became of the items in some spools.

    Attributes:
        delivered: Items that the backend accepted.
        too_old: Items that it refused for their age; they are set aside.
        set_aside: Items that it refused for another reason; they are set aside.
        set_aside_requests: Number of requests that were set aside, including those without items.
        lost: Items that are neither delivered nor kept, by reason.
        unreadable: Segments, blocks and records that could not be read.
        trouble: The cause why something is left; empty if nothing is.
    """

    delivered: int = 0
    too_old: int = 0
    set_aside: int = 0
    set_aside_requests: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    trouble: str = ""

    def add(self, other: Outcome) -> None:
        """Add the numbers of another outcome."""
        self.delivered += other.delivered
        self.too_old += other.too_old
        self.set_aside += other.set_aside
        self.set_aside_requests += other.set_aside_requests
        self.lost += other.lost
        self.unreadable += other.unreadable

    @property
    def complete(self) -> bool:
        """True if everything was delivered."""
        return not (self.set_aside_requests or self.lost or self.unreadable or self.trouble)


class _ReplayedSpool(Spool):
    """A spool that counts the refused requests that it keeps."""

    def __init__(self, folder: Path, outcome: Outcome, *, foreign: bool) -> None:
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
    on_progress: Progress = lambda _delivered, _total: None,
) -> Outcome:
    """Deliver one spool, oldest first, and remove what was acknowledged.

    If it is interrupted or refused, the next call goes on from there; the request that was under way may arrive twice.

    Args:
        folder: A spool.
        transports: How to send each signal.
        foreign: Use the folder even if it belongs to another user.
        pauses: Seconds after which a request that was not accepted is tried again; by default 1, 2, 4 and 8.
        on_progress: Called after each request, with the bytes that are gone and all bytes; it may raise.

    Returns:
        What was done, and why something is left.

    Raises:
        SpoolError: The folder cannot be used: its process still runs, or it is unsafe.
        OSError: The folder cannot be read or written.
    """
    outcome = Outcome()
    with closing(_ReplayedSpool(folder, outcome, foreign=foreign)) as spool:
        spool.load()
        begin = spool.size_bytes
        for signal in SIGNALS:
            if spool.oldest(signal) is None:
                continue
            if signal not in transports:
                outcome.trouble = f"there are {signal} to deliver, and no endpoint for them: give --endpoint"
                continue
            trouble = _replay_signal(
                spool,
                transports[signal],
                signal,
                outcome,
                PAUSES if pauses is None else pauses,
                lambda: on_progress(begin - spool.size_bytes, begin),
            )
            if trouble:
                outcome.trouble = trouble
                break
        outcome.unreadable = spool.problems
    kept = outcome.too_old + outcome.set_aside
    for reason in ("rejected", "unconfirmed"):  # those that are lost could not be set aside
        taken = min(kept, outcome.lost[reason])
        outcome.lost[reason] -= taken
        kept -= taken
    outcome.lost = +outcome.lost
    return outcome


def _replay_signal(  # noqa: PLR0917  all of it belongs to one call
    spool: Spool,
    transport: Transport,
    signal: str,
    outcome: Outcome,
    pauses: Sequence[float],
    on_progress: Callable[[], object],
) -> str:
    """Deliver the requests of one signal, and count them.

    Returns:
        The reason why some are left; empty if none is.
    """
    accounting = Accounting()
    queue = RetryQueue(signal, accounting, Disk(spool), on_progress, online=True, stored=True)
    sender = Sender(queue, transport, Disk(spool), lambda _signal, _seconds: None)
    try:
        _deliver(sender, pauses, on_progress)
    finally:
        queue.end()
        queue.spill_rest()  # parts of a request that was taken apart
        account = accounting.account()[signal]
        outcome.delivered += account.delivered
        outcome.lost += Counter(account.dropped)
    outcome.lost += Counter(spool.take_lost(signal))
    if sender.trouble is None:
        return ""
    return f"{transport.url}: {sender.trouble.reason}; the rest is still in {spool.folder}, run this again"


def _deliver(sender: Sender, pauses: Sequence[float], on_progress: Callable[[], object]) -> None:
    """Deliver until nothing is left, or the backend has not accepted the oldest request for a while."""
    for pause in (*pauses, None):
        while sender.deliver_one():
            on_progress()
        if sender.trouble is None or sender.trouble.verdict is Verdict.REFUSED or pause is None:
            return
        asked = sender.trouble.retry_after
        _never.wait(pause if asked is None else min(asked, _LONGEST_ASKED))
