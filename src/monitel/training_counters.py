"""Counters of a training loop: steps, samples, tokens, recompilations and time. Sources and adapters share them.

What :func:`monitel.torch.instrument` counts, adapters do not count again.
"""

from __future__ import annotations

import sys
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


def begin_counters(*, tokens: bool) -> None:
    """Create the counters at the start of the training, from which they count; that of tokens on request."""
    training_counter("training.steps")
    training_counter("training.samples")
    if tokens:
        training_counter("training.tokens")


def count_steps(number: int = 1, *, skipped: bool = False) -> None:
    """Count optimizer steps; ``skipped`` if the parameters did not change, because a gradient was not finite."""
    if not _torch_counts("steps"):
        training_counter("training.steps.skipped" if skipped else "training.steps").add(number)


def count_samples(number: int) -> None:
    """Count samples that this process has processed."""
    if not _torch_counts("samples_per_step"):
        training_counter("training.samples").add(number)


def count_tokens(number: int) -> None:
    """Count tokens that this process has processed."""
    if number and not _torch_counts("tokens_per_step"):
        training_counter("training.tokens").add(number)


def _torch_counts(option: str) -> bool:
    """Return whether the running instrumentation of torch counts the work that this option requests."""
    instrumentation = sys.modules.get("monitel.torch.instrumentation")
    running = None if instrumentation is None else instrumentation._running
    return running is not None and "steps" in running.sources and bool(getattr(running._options, option))
