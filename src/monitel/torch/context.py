"""Where something happens: the rank of this process, and the step that it is at."""

from __future__ import annotations

import os

from torch import distributed

from monitel.step import get_step

_TOO_LONG = 19  # digits: it might not go into 64 bits


def rank() -> int | None:
    """This process's rank: torch.distributed's, and before that is initialised what torchrun says; else None."""
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    said = os.environ.get("RANK", "").strip()
    return int(said) if said.isdecimal() and len(said) < _TOO_LONG else None


def place() -> dict[str, str | int | float | bool]:
    """``training.rank`` and ``training.step``, each where it is known: for the data of an event."""
    return place_at(get_step())


def place_at(step: int | None) -> dict[str, str | int | float | bool]:
    """The same of what has happened in that step."""
    known = {"training.rank": rank(), "training.step": step}
    return {key: value for key, value in known.items() if value is not None}
