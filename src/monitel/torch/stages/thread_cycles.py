"""The cycles of one thread, on the host and on the device."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING

from monitel.torch.stages.cycle import Cycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.stages.device_stages import Timeline

    Log = Callable[["ThreadCycle", "list[int] | None"], None]


class ThreadCycle(Cycle):
    """The cycle of the thread that creates it.

    Args:
        log: Called with this object and the stages when a cycle has ended, as by :class:`Cycle`.
    """

    timeline: Timeline | None = None

    def __init__(self, log: Log) -> None:
        super().__init__(lambda stages: log(self, stages))
        self.thread = current_thread()


class DeviceCycle(ThreadCycle):
    """A cycle that is also measured on the device."""

    timeline: Timeline

    def __init__(self, log: Log, timeline: Timeline) -> None:
        super().__init__(log)
        self.timeline = timeline

    def optimizer_ended(self, now_ns: int) -> None:
        """Mark the end of the optimizer, after the cycle was cut before it."""
        super().optimizer_ended(now_ns)
        self.timeline.optimizer_ended()

    def batch_began(self, now_ns: int) -> None:
        """Mark the begin of a request."""
        super().batch_began(now_ns)
        self.timeline.batch_began()

    def batch_ended(self, now_ns: int, iterator: object, received: int | None, training: bool) -> None:
        """Mark the end of a request."""
        super().batch_ended(now_ns, iterator, received, training)
        self.timeline.batch_ended(training=self.trains)

    def backward_began(self, now_ns: int) -> None:
        """Mark the begin of backward."""
        self.timeline.backward_began(asked=self.asks, training=self.trains)
        super().backward_began(now_ns)

    def gradients_complete(self) -> None:
        """Mark that the rank's gradients are complete."""
        super().gradients_complete()
        self.timeline.gradients_complete()

    def backward_ended(self, now_ns: int) -> None:
        """Mark the end of backward, before the cycle is cut there."""
        self.timeline.backward_ended()
        super().backward_ended(now_ns)
