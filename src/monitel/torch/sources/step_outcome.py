"""The outcome of a training step with gradient scaling: applied or skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from monitel.counter import Counter
    from monitel.os_threads import RLock
    from monitel.torch.boundaries.optimizer_steps import Results


class Numbers(Protocol):
    """Reads numbers of tensors without waiting for their device."""

    def open(self) -> None:
        """Begin. Each user calls close() at its end."""

    def close(self) -> None:
        """Resolve all pending numbers."""

    def reset(self) -> None:
        """Discard all pending numbers."""

    def read(self, tensor: Tensor, pending: StepOutcome, /) -> None:
        """Resolve ``pending`` with the number of a tensor, now or later."""


class StepOutcome:
    """Counts one training step as applied or as skipped: it is skipped if all of its optimizers skip.

    Only steps with gradient scaling need it. Whether a fused optimizer skips is decided on its device, in the number
    ``found_inf``, which may arrive later. If it is lost, the step counts as applied.

    Args:
        applied: Counts applied steps.
        skipped: Counts skipped steps.
        numbers: Reads ``found_inf``.
        lock: Held while the state changes.
    """

    def __init__(self, applied: Counter, skipped: Counter, numbers: Numbers, lock: RLock) -> None:
        self._applied = applied
        self._skipped = skipped
        self._numbers = numbers
        self._lock = lock
        self._missing = 0  # numbers that have not arrived
        self._ended = False
        self._counted = False

    def add(self, results: Results) -> None:
        """Add the results of one optimizer."""
        if results is None:
            with self._lock:
                self._count(self._applied)
            return
        with self._lock:
            self._missing += len(results)
        for each in results:
            self._numbers.read(each, self)

    def end(self) -> None:
        """End the step: no other optimizer belongs to it."""
        with self._lock:
            self._ended = True
            self._count_if_skipped()

    def resolve(self, value: float | None) -> StepOutcome:
        """Set one ``found_inf``; None if it is lost. Nothing needs to be logged afterwards."""
        with self._lock:
            self._missing -= 1
            if value:
                self._count_if_skipped()
            else:
                self._count(self._applied)
        return self

    def _log_resolved(self) -> None:
        """Do nothing: steps are counted, not logged."""

    def _count_if_skipped(self) -> None:
        if self._ended and not self._missing:
            self._count(self._skipped)

    def _count(self, counter: Counter) -> None:
        if not self._counted:
            self._counted = True
            counter.add()
