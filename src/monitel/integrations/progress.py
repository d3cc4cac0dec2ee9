"""Counters of the steps, samples and tokens of a training loop that a framework runs.

What :func:`monitel.torch.instrument` counts is not counted here again.
"""

from __future__ import annotations

import sys

from monitel.training_counters import training_counter


def begin(*, tokens: bool) -> None:
    """Create the counters at the start of the training, from which they count; that of tokens on request."""
    training_counter("training.steps")
    training_counter("training.samples")
    if tokens:
        training_counter("training.tokens")


def count_steps(number: int = 1, *, skipped: bool = False) -> None:
    """Count optimizer steps.

    Args:
        number: Number of steps.
        skipped: The parameters did not change, because a gradient was not finite.
    """
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
