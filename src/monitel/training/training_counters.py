"""Counters of a training loop: steps, samples, tokens, recompilations and time. Sources and adapters share them.

What :func:`monitel.torch.instrument` counts, adapters do not count again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monitel.counter import Counter, own_counter

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
#: The options by which torch's instrumentation counts them, too.
_OPTIONS = {"training.samples": "samples_per_step", "training.tokens": "tokens_per_step"}


def training_counter(name: str, attributes: Mapping[str, str] | None = None) -> Counter:
    """Return one of these counters by its name and attributes, with its unit and description."""
    return own_counter(name, *COUNTERS[name], attributes)


def begin_counters(*, tokens: bool) -> None:
    """Create the counters at the start of the training, from which they count; that of tokens on request."""
    training_counter("training.steps")
    training_counter("training.samples")
    if tokens:
        training_counter("training.tokens")


def count_work(name: str, number: int = 1) -> None:
    """Count steps, samples or tokens, unless the running instrumentation of torch counts them."""
    instrumentation = sys.modules.get("monitel.torch.instrumentation")
    running = None if instrumentation is None else instrumentation._running
    counted = running and "steps" in running.sources and (name not in _OPTIONS or running._options[_OPTIONS[name]])
    if number and not counted:
        training_counter(name).add(number)
