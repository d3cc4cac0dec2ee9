"""Counters of a training loop: steps, samples and tokens. Sources and adapters share them."""

from __future__ import annotations

from monitel.counter import Counter, counter

_COUNTERS = {
    "training.steps": ("{step}", "Applied optimizer steps"),
    "training.steps.skipped": ("{step}", "Optimizer steps skipped by gradient scaling"),
    "training.samples": ("{sample}", "Samples in training"),
    "training.tokens": ("{token}", "Tokens in training"),
}


def training_counter(name: str) -> Counter:
    """Return one of these counters by its name, with its unit and description.

    If the user has created it with another unit or description, theirs stay.
    """
    unit, description = _COUNTERS[name]
    try:
        return counter(name, unit=unit, description=description)
    except ValueError:
        return counter(name)
