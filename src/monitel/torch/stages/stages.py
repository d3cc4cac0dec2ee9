"""The cycles of each thread, on the host and on the device, and the durations of their stages as Stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel import clock
from monitel.process.failures import call_each
from monitel.stats.stat import Stat
from monitel.torch.boundaries.backward import Backward
from monitel.torch.boundaries.waits_for_ranks import WaitsForRanks
from monitel.torch.hooks import Source
from monitel.torch.recording import several_ranks, stage_stat
from monitel.torch.stages.cycle import STAGES, Cycle
from monitel.torch.stages.device_stages import DeviceCycle
from monitel.training import stage

if TYPE_CHECKING:
    from monitel.torch.boundaries.batch_loading import BatchLoading
    from monitel.torch.boundaries.optimizer_steps import OptimizerSteps
    from monitel.torch.stages.cycle import TrainingThread
    from monitel.torch.stages.device_stages import DeviceStages

_SYNC = STAGES.index("sync")
_IDLE = 16  # cycles of other threads after which a training thread without any has ended training


class Stages(Source):
    """Measures the stages of the training thread's cycles, as :class:`monitel.torch.stages.cycle.Cycle` defines them.

    Stat: ``training.stage.duration`` in seconds, one sample for each cycle and stage, with the attribute
    ``training.stage``. ``sync`` has samples in a process group of several ranks only. The training thread is the first
    one that ends a cycle. If it has ended, or has no cycle while others have 16, the next thread takes its place.

    Its stage in flight, for :func:`monitel.training.stage.stage_now`, is read from its cycle; the hooks do nothing for
    it.

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
        self._owner: Cycle | None = None
        self._newest: Cycle | None = None  # the last one that was started before there was an owner
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

    def _start(self) -> Cycle:
        started = Cycle(self._log) if self._device is None else self._device.cycle(self._log)
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

    def _log(self, mine: Cycle, stages: list[int] | None) -> None:
        """Log a cycle, if it is the training thread's."""
        logged = stages is not None and (mine is self._owner or self._takes_over(mine))
        if isinstance(mine, DeviceCycle):
            if logged and self._device is not None:
                self._device.log(mine)
            else:
                mine.cut_marks()
        if stages is None or not logged:
            return
        self._others_cycles = 0
        if not stages[_SYNC] and not several_ranks():
            del stages[_SYNC]
        for add, ns in zip(self._adds, stages, strict=False):
            add(ns / 1e9)

    def _takes_over(self, mine: Cycle) -> bool:
        """Return whether a thread becomes the training thread, because there is none, or none that trains."""
        self._others_cycles += 1
        if self._owner is None or not self._owner.thread.is_alive() or self._others_cycles > _IDLE:
            self._owner = mine
            return True
        return False
