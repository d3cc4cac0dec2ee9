"""The cycles of each thread, on the host and on the device, and the durations of their stages as Stats."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING

from monitel import clock, stage
from monitel.failures import call_each
from monitel.stats import Stat
from monitel.torch.boundaries.backward import Backward
from monitel.torch.boundaries.waits_for_ranks import WaitsForRanks
from monitel.torch.hooks import Source
from monitel.torch.recording import several_ranks, stage_stat
from monitel.torch.stages.cycle import STAGES, Cycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.boundaries.batch_loading import BatchLoading
    from monitel.torch.boundaries.optimizer_steps import OptimizerSteps
    from monitel.torch.stages.cycle import TrainingThread
    from monitel.torch.stages.device_stages import DeviceStages, Timeline

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


_SYNC = STAGES.index("sync")
_IDLE = 16  # cycles of other threads after which a training thread without any has ended training


class Stages(Source):
    """Measures the stages of the training thread's cycles, as :class:`monitel.torch.stages.cycle.Cycle` defines them.

    Stat: ``training.stage.duration`` in seconds, one sample for each cycle and stage, with the attribute
    ``training.stage``. ``sync`` has samples in a process group of several ranks only. The training thread is the first
    one that ends a cycle. If it has ended, or has no cycle while others have 16, the next thread takes its place.

    Its stage in flight, for :func:`monitel.stage.stage_now`, is read from its cycle; the hooks do nothing for it.

    Args:
        window_size: Window size of the Stats in seconds.
        group: Name of the group of ranks to which this one is compared; None for all ranks.
        thread: State of each thread, in which the hooks find its cycle.
        optimizers: Reports the steps of optimizers.
        loading: Reports requests for batches.
        device: Measures the same stages on the device; None if that is not wanted.
    """

    def __init__(
        self,
        window_size: float,
        group: str | None,
        thread: TrainingThread,
        optimizers: OptimizerSteps,
        loading: BatchLoading,
        *,
        device: DeviceStages | None = None,
    ) -> None:
        self._stats = [stage_stat("training.stage.duration", each, group, window_size) for each in STAGES]
        self._adds = [each.add for each in self._stats]
        self._thread = thread
        self._optimizers = optimizers
        self._device = device
        self.needs = (WaitsForRanks(self._waiting), Backward(thread, self._start), optimizers, loading)
        self.reset()

    def reset(self) -> None:
        """Discard the parent's cycles. For a forked child."""
        self._thread.cycle = None
        self._owner: ThreadCycle | None = None
        self._newest: ThreadCycle | None = None  # the last one that was started before there was an owner
        self._others_cycles = 0  # cycles of other threads since the last one of the owner

    def install(self) -> None:
        """Begin to measure."""
        self._optimizers.foreign_step = self._step_elsewhere
        stage.provide(self._stage_now)

    def remove(self) -> None:
        """End, and flush the Stats."""
        stage.forget(self._stage_now)
        self._adds = []  # a cycle that ends in another thread, or in a step under way, is too late
        call_each(Stat.flush, self._stats)

    def _start(self) -> ThreadCycle:
        timeline = None if self._device is None else self._device.timeline()
        started = ThreadCycle(self._log) if timeline is None else DeviceCycle(self._log, timeline)
        if self._owner is None:
            self._newest = started
        return started

    def _stage_now(self) -> stage.StageNow | None:
        """Return the stage in flight of the training thread; before the first cycle has ended of the newest thread."""
        mine = self._owner or self._newest
        found = None if mine is None or not mine.thread.is_alive() else mine.in_flight()
        if mine is None or found is None:
            return None
        name, waits, since_ns = found
        return stage.StageNow(name, waits, max(clock.reading()() - since_ns, 0), mine.thread.ident or 0)

    def _step_elsewhere(self) -> None:
        """Handle an optimizer that steps inside backward, in a thread of autograd."""
        if self._owner is not None:
            self._owner.optimizer_began_in_backward()

    def _waiting(self) -> Cycle | None:
        """Return the cycle of the calling thread, if it may wait for other ranks."""
        return self._thread.cycle if several_ranks() else None

    def _log(self, mine: ThreadCycle, stages: list[int] | None) -> None:
        """Log a cycle, if it is the training thread's."""
        if stages is None or (mine is not self._owner and not self._takes_over(mine)):
            if mine.timeline is not None:
                mine.timeline.discard()
            return
        if mine.timeline is not None and self._device is not None:
            self._device.log(mine.timeline)
        self._others_cycles = 0
        if not stages[_SYNC] and not several_ranks():
            del stages[_SYNC]
        for add, ns in zip(self._adds, stages, strict=False):
            add(ns / 1e9)

    def _takes_over(self, mine: ThreadCycle) -> bool:
        """Return whether a thread becomes the training thread, because there is none, or none that trains."""
        self._others_cycles += 1
        if self._owner is None or not self._owner.thread.is_alive() or self._others_cycles > _IDLE:
            self._owner = mine
            return True
        return False
