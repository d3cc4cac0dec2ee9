"""Accounts: how many items were recorded, delivered, kept and dropped."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike


@dataclass(frozen=True, slots=True)
class Account:
    """The items of one signal, by outcome. Items are windows and logged numbers, log records, or spans.

    ``recorded == delivered + on_disk + folded + sum(dropped.values()) + waiting`` holds in every account.

    Attributes:
        recorded: Items that the application has recorded. A range that is not sampled is not recorded.
        delivered: Items that a backend has acknowledged.
        on_disk: Items in the spool; after the end also items that are left in the black box.
        folded: Ranges beyond the span budget that are part of a complete folded span (one per step).
        waiting: Items in memory.
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


def exit_summary(accounts: Mapping[str, Account], spool_dir: PathLike[str], *, offline: bool, stored: bool) -> str:
    """Return one line: what was exported, dropped and spooled, and how to replay the spool.

    Args:
        accounts: The account of each signal.
        spool_dir: The spool folder of this process.
        offline: True if no signal has an endpoint.
        stored: True if something is on disk, even if it is not an item.
    """
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
