"""The activity ``data``: the training loop waits for batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.torch.thread_activity import training_activity

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from monitel.torch.boundaries.batch_loading import BatchLoading

_INCLUDE_DATA = frozenset(("evaluation", "checkpoint.save", "checkpoint.load"))  # activities


class DataActivity:
    """Counts waiting for batches as the activity ``data``, in the training thread.

    The end of an epoch counts too, and so does the start of workers. Within an evaluation or a checkpoint the time
    stays part of that activity.

    Args:
        loading: Reports requests for batches.
    """

    def __init__(self, loading: BatchLoading) -> None:
        self._loading = loading

    def install(self) -> None:
        """Listen to requests for batches."""
        self._loading.add(self)

    def remove(self) -> None:
        """Stop listening."""
        self._loading.discard(self)

    def batch_began(self) -> AbstractContextManager[None]:
        """Enter the activity."""
        waiting = training_activity("data", part_of=_INCLUDE_DATA)
        waiting.__enter__()
        return waiting

    def batch_ended(self, began: AbstractContextManager[None]) -> None:
        """Leave the activity."""
        began.__exit__(None, None, None)
