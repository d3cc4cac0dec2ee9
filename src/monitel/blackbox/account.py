"""Accounts: how many items were recorded, delivered, kept and dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
