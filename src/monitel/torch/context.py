"""The rank of this process and the training step, in events."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import distributed

from monitel.event import Event, Severity
from monitel.handlers import log_event
from monitel.step import get_step

if TYPE_CHECKING:
    from datetime import datetime

_MAX_DIGITS = 18  # a longer number might not fit into 64 bits


def rank() -> int | None:
    """Return the rank of this process, or None if it is unknown.

    It is torch.distributed's rank, or the value of ``RANK`` before torch.distributed is initialized.
    """
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    value = os.environ.get("RANK", "").strip()
    return int(value) if value.isdecimal() and len(value) <= _MAX_DIGITS else None


def current_context() -> dict[str, str | int | float | bool]:
    """Return the event attributes ``training.rank`` and ``training.step``, each if it is known."""
    return context_at(get_step())


def context_at(step: int | None) -> dict[str, str | int | float | bool]:
    """Return the same attributes for an event that happened in an earlier step."""
    known = {"training.rank": rank(), "training.step": step}
    return {key: value for key, value in known.items() if value is not None}


def emit_at(
    step: int | None, name: str, data: dict[str, Any], *, timestamp: datetime, severity: Severity = Severity.INFO
) -> None:
    """Log an event that happened at an earlier time and step, with the attributes of that step."""
    event = Event(name, timestamp, {**data, **context_at(step)}, severity=severity)
    event._step = step
    log_event(event)
