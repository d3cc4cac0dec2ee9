"""Counters of a training loop: steps, samples, tokens, recompilations and time. Sources and adapters share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.counter import Counter, counter

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Unit and description of each of these counters.
COUNTERS = {
    "training.steps": ("{step}", "Applied optimizer steps"),
    "training.steps.skipped": ("{step}", "Optimizer steps skipped by gradient scaling"),
    "training.samples": ("{sample}", "Samples in training"),
    "training.tokens": ("{token}", "Tokens in training"),
    "training.recompilations": ("{recompilation}", "Compilations of code that was compiled before"),
    "training.recompilation.time": ("s", "Time of compilations of code that was compiled before"),
    "training.time": ("s", "Wall-clock time by activity"),
}


def training_counter(name: str, attributes: Mapping[str, str] | None = None) -> Counter:
    """Return one of these counters by its name and attributes, with its unit and description.

    If the user has created it with another unit or description, theirs stay.
    """
    unit, description = COUNTERS[name]
    try:
        return counter(name, unit=unit, description=description, attributes=attributes)
    except ValueError:
        return counter(name, attributes=attributes)
