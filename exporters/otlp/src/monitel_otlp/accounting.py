"""Accounts of all recorded items, counted in one place under one lock."""

from __future__ import annotations

import logging
import shlex
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from monitel.os_threads import RLock
from monitel_otlp.messages.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from monitel.bounded_queue import BoundedQueue
    from monitel_otlp.traces.span_queue import QueuedSpans

_log = logging.getLogger("monitel.otlp")

_Item = TypeVar("_Item")

EXIT = "exit"
QUEUE_FULL = "queue_full"
UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True)
class Account:
    """The items of one signal, by outcome: windows and numbers, events and records of ``logging``, or ranges.

    ``recorded == delivered + on_disk + folded + sum(dropped.values()) + waiting`` holds in every account.

    Attributes:
        recorded: Items that were recorded by monitel. A range that is not sampled is not recorded.
        delivered: Items that a backend has acknowledged.
        on_disk: Items in the spool.
        folded: Ranges beyond the span budget that are part of a complete folded span (one per step).
        waiting: Items in memory: queued, being encoded, or in an unacknowledged request.
        dropped: Lost items by reason. ``partial_success`` of metrics is an estimate, because backends count points.
        synthetic: Delivered spans that the pipeline has made itself. They are not items.

    Example:
        >>> from monitel_otlp import Account
        >>> Account(recorded=3, delivered=2, dropped={"queue_full": 1}).waiting
        0
    """

    recorded: int = 0
    delivered: int = 0
    on_disk: int = 0
    folded: int = 0
    waiting: int = 0
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    synthetic: int = 0

    @property
    def lost(self) -> int:
        """The number of dropped items, for any reason."""
        return sum(self.dropped.values())


class Stage(Enum):
    """The stage of an item between its queue and its outcome."""

    ENCODING = "encoding"  #: taken from a queue, and not in a request yet
    MEMORY = "memory"  #: in a request in memory
    DISK = "disk"  #: in the spool


class _Ledger:
    """The counters of one signal behind its queues."""

    def __init__(self) -> None:
        self.queues: list[BoundedQueue[Any]] = []
        self.folds: QueuedSpans | None = None
        self.direct = 0  # recorded without a queue
        self.at = dict.fromkeys(Stage, 0)
        self.delivered = 0
        self.folded = 0
        self.synthetic = 0
        self.dropped: Counter[str] = Counter()


class Accounting:
    """Counts items from the moment they are queued until they are delivered, on disk, or dropped.

    A queue appends, counts and drops in one step, so a producer takes no lock. Behind the queues an item moves from
    one counter to another only under :attr:`lock`, which :meth:`account` also holds. Therefore the accounts add up at
    every moment. After :meth:`close` nothing changes.

    Attributes:
        lock: Held while items move, and never during a send, a write or a callback.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._ledgers = {signal: _Ledger() for signal in SIGNALS}
        self._closed: dict[str, Account] | None = None

    def add_queue(self, signal: str, queue: BoundedQueue[Any]) -> None:
        """Count the items that are put into a queue."""
        self._ledgers[signal].queues.append(queue)

    def add_folds(self, folds: QueuedSpans) -> None:
        """Count the ranges beyond the span budget."""
        self._ledgers["traces"].folds = folds

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed is not None

    def take(self, signal: str, take: Callable[[int], list[_Item]], limit: int) -> list[_Item]:
        """Take items from a queue into encoding.

        Args:
            signal: The signal of the queue.
            take: The ``take`` method of the queue. Given a limit, it returns the oldest items.
            limit: The maximum number of items.

        Returns:
            The items; none after :meth:`close`.
        """
        with self.lock:
            if self._closed is not None:
                return []
            taken = take(limit)
            self._ledgers[signal].at[Stage.ENCODING] += len(taken)
            return taken

    def fold(self, ranges: int) -> None:
        """Count the ranges of complete folded spans. ``folds.folding()`` no longer includes them."""
        self._ledgers["traces"].folded += ranges

    def move(self, signal: str, source: Stage, target: Stage, items: int) -> None:
        """Move items from one stage to another."""
        with self.lock:
            if self._closed is None:
                at = self._ledgers[signal].at
                at[source] -= items
                at[target] += items

    def deliver(self, signal: str, source: Stage, items: int, synthetic: int = 0) -> None:
        """Count items that a backend has acknowledged."""
        with self.lock:
            if self._closed is None:
                ledger = self._ledgers[signal]
                ledger.at[source] -= items
                ledger.delivered += items
                ledger.synthetic += synthetic

    def drop(self, signal: str, source: Stage, reason: str, items: int) -> None:
        """Count lost items, with the reason."""
        with self.lock:
            if self._closed is None and items:
                ledger = self._ledgers[signal]
                ledger.at[source] -= items
                ledger.dropped[reason] += items

    def lose(self, signal: str, reason: str, items: int) -> None:
        """Count items as recorded and lost in one step."""
        with self.lock:
            if self._closed is None and items:
                self._ledgers[signal].direct += items
                self._ledgers[signal].dropped[reason] += items

    def account(self) -> dict[str, Account]:
        """Return the accounts of all signals, read at the same moment."""
        with self.lock:
            if self._closed is not None:
                return dict(self._closed)
            return {signal: _account(ledger) for signal, ledger in self._ledgers.items()}

    def close(self, *, encoded: bool = True) -> None:
        """Drop the waiting items, with reason ``exit``, and freeze the accounts. Idempotent.

        Args:
            encoded: The encoder has finished, and no request is left in memory. Items that are still counted there
                have vanished because of a bug. They are dropped with reason ``unaccounted``, and an error is logged.
        """
        with self.lock:
            if self._closed is not None:
                return
            closed = {}
            for signal, ledger in self._ledgers.items():
                now = _account(ledger)
                vanished = ledger.at[Stage.ENCODING] + ledger.at[Stage.MEMORY] if encoded else 0
                if vanished or min(*ledger.at.values(), ledger.delivered) < 0:
                    _log.error("bug in monitel: %d items of %s are unaccounted for: %s", vanished, signal, ledger.at)
                dropped = Counter(now.dropped)
                dropped[UNACCOUNTED] += vanished
                dropped[EXIT] += now.waiting - vanished
                closed[signal] = replace(now, waiting=0, dropped=_frozen(dropped))
            self._closed = closed


def _account(ledger: _Ledger) -> Account:
    counts = [queue.counts() for queue in ledger.queues]
    folding = ledger.folds.folding() if ledger.folds is not None else 0
    dropped = Counter(ledger.dropped)
    dropped[QUEUE_FULL] += sum(each.dropped for each in counts)
    at = ledger.at
    return Account(
        recorded=sum(each.recorded for each in counts) + ledger.direct + ledger.folded + folding,
        delivered=ledger.delivered,
        on_disk=at[Stage.DISK],
        folded=ledger.folded,
        waiting=sum(each.waiting for each in counts) + at[Stage.ENCODING] + at[Stage.MEMORY] + folding,
        dropped=_frozen(dropped),
        synthetic=ledger.synthetic,
    )


def _frozen(dropped: Counter[str]) -> Mapping[str, int]:
    return MappingProxyType({reason: items for reason, items in dropped.items() if items})


def print_exit_summary(
    accounts: Mapping[str, Account], spool_dir: PathLike[str], *, offline: bool, stored: bool
) -> None:
    """Print what was exported, dropped and spooled, and how to replay the spool.

    Args:
        accounts: The account of each signal.
        spool_dir: The spool folder of this process.
        offline: True if no signal has an endpoint.
        stored: True if requests are on disk, even if they hold no item.
    """
    line = exit_summary(accounts, spool_dir, offline=offline, stored=stored)
    with suppress(Exception):  # a signal handler may have interrupted a print; stderr may be closed
        print(f"{line}\n", end="", file=sys.stderr)  # noqa: T201  one write: other ranks print too


def exit_summary(accounts: Mapping[str, Account], spool_dir: PathLike[str], *, offline: bool, stored: bool) -> str:
    """Return the line that :func:`print_exit_summary` prints; the arguments are the same."""
    parts = []
    if not offline:
        numbers, events, spans = (accounts[signal].delivered for signal in ("metrics", "logs", "traces"))
        more = f", {spans} spans" if spans else ""
        parts.append(f"exported {numbers} windows and numbers, {events} events{more}")
    dropped: dict[str, int] = {}
    for account in accounts.values():
        for reason, items in account.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + items
    if dropped:
        reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
        parts.append(f"dropped {sum(dropped.values())} ({reasons})")
    spooled = sum(account.on_disk for account in accounts.values())
    if spooled or stored:
        what = f"{spooled} {'item' if spooled == 1 else 'items'}" if spooled else "values of counters"
        where = " --endpoint http://HOST:4318" if offline else ""
        parts.append(f"{what} in {spool_dir}, replay with: monitel replay {shlex.quote(str(spool_dir))}{where}")
    return f"monitel: {'; '.join(parts) or 'nothing was recorded'}"
