"""State of each thread at the boundaries of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monitel.os_threads import local

if TYPE_CHECKING:
    from torch import Tensor


class Stopwatch(Protocol):
    """Measures the stages of one thread. The hooks call it directly, because each further call costs the job time.

    Attributes:
        mark_ns: The last boundary.
        step_ns: The begin of the last call of an optimizer.
        forward_since_ns: The begin of forward, if backward began now; 0 without a forward.
    """

    mark_ns: int
    step_ns: int

    @property
    def forward_since_ns(self) -> int: ...  # noqa: D102  documented in the class

    def optimizer_began(self, now_ns: int) -> None:
        """A call of an optimizer begins. It may call a closure with backward."""

    def optimizer_ended(self, now_ns: int) -> None:
        """A call of an optimizer has ended."""

    def optimizer_began_in_backward(self) -> None:
        """An optimizer steps inside backward."""

    def batch_began(self, now_ns: int) -> None:
        """A batch is asked for."""

    def batch_ended(self, now_ns: int, iterator: object, received: int | None, training: bool) -> None:
        """A request for a batch has ended.

        Args:
            now_ns: The time.
            iterator: The iterator; None if it could not be opened.
            received: Number of batches: 1; 0 if the iterator was only opened; None if it is exhausted or has raised.
            training: False if the batch cannot be one for training.
        """

    def backward_began(self, now_ns: int) -> None:
        """Backward begins."""

    def gradients_complete(self) -> None:
        """The rank's gradients are complete; waiting for those of other ranks follows. Any thread may call it."""

    def backward_ended(self, now_ns: int) -> None:
        """Backward has ended, or raised."""

    def wait_began(self) -> int:
        """A wait for other ranks begins. Return the first argument of ``wait_ended()``."""

    def wait_ended(self, before_ns: int, ns: int) -> None:
        """A wait for other ranks has ended, after this many nanoseconds."""

    def waited(self, ns: int = 0) -> int:
        """Add time that the thread has waited for other ranks, and return the sum. Any thread may call it."""


class TrainingThread(local):
    """State of the calling thread.

    Attributes:
        stopwatch: Measures its stages; None in a thread without backward.
        requests: Whether it is waiting for a batch.
        entered: The id of the optimizer whose ``step()`` was entered last.
        scaled: ``found_inf`` of the optimizers in the ``GradScaler.step()`` under way.
    """

    stopwatch: Stopwatch | None = None
    requests = False
    entered: int | None = None
    scaled: list[Tensor | None] | None = None
