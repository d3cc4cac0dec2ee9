"""The durations of the stages of a training step, as Stats."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from threading import Thread, current_thread, local
from typing import TYPE_CHECKING, Any

import torch

from monitel.failures import call_each
from monitel.profiler.ranges import listeners, record_past
from monitel.stats import Stat
from monitel.torch._compat import NO_GRAPH, current_graph
from monitel.torch.boundaries.backward import Backward, several_ranks
from monitel.torch.boundaries.waits_for_ranks import WaitsForRanks
from monitel.torch.guarded_stat import stage_stat
from monitel.torch.stages.cycle import STAGES, Cycle
from monitel.torch.training_ranges import open_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.boundaries.batch_loading import BatchLoading
    from monitel.torch.boundaries.optimizer_steps import OptimizerSteps
    from monitel.torch.stages.device_stages import DeviceStages, Timeline

_SYNC = STAGES.index("sync")
_IDLE = 16  # cycles of other threads after which a training thread without any has ended training


class Stages:
    """Measures the stages of the training thread's cycles, as :class:`monitel.torch.stages.cycle.Cycle` defines them.

    Stat: ``training.stage.duration`` in seconds, one sample for each cycle and stage, with the attribute
    ``training.stage``. ``sync`` has samples in a process group of several ranks only. The training thread is the first
    one that ends a cycle. If it has ended, or has no cycle while others have 16, the next thread takes its place.

    Ranges: ``training.backward``, ``training.forward``, ``training.optimizer``. The latter two are recorded when they
    have ended: the begin of a forward is not known before, and torch calls no hook if ``step()`` raises, so an open
    range would stay open.

    Args:
        window_size: Window size of the Stats in seconds.
        group: Name of the group of ranks to which this one is compared; None for all ranks.
        optimizers: Reports the steps of optimizers.
        loading: Reports requests for batches.
        device: Measures the same stages on the device; None if that is not wanted.
    """

    def __init__(
        self,
        window_size: float,
        group: str | None,
        optimizers: OptimizerSteps,
        loading: BatchLoading,
        device: DeviceStages | None = None,
    ) -> None:
        self._stats = [stage_stat("training.stage.duration", stage, group, window_size) for stage in STAGES]
        self._adds = [each.add for each in self._stats]
        self._optimizers = optimizers
        self._loading = loading
        self._device = device
        self._backward = Backward(self)
        self._waits = WaitsForRanks(self._waiting)
        self.reset()

    def reset(self) -> None:
        """Discard the parent's cycles. For a forked child."""
        self._thread = _Thread()
        self._owner: _ThreadCycle | None = None
        self._others_cycles = 0  # cycles of other threads since the last one of the owner

    def install(self) -> None:
        """Listen to the boundaries of the stages."""
        self._graph = current_graph()
        with ExitStack() as undo:  # if this version of torch lacks one of them
            for install, remove in (
                (self._waits.install, self._waits.remove),
                (self._backward.install, self._backward.remove),
                (lambda: self._optimizers.add(self), lambda: self._optimizers.discard(self)),
                (lambda: self._loading.add(self), lambda: self._loading.discard(self)),
            ):
                install()
                undo.callback(remove)
            undo.pop_all()

    def remove(self) -> None:
        """Stop listening, and flush the Stats."""
        self._loading.discard(self)
        self._optimizers.discard(self)
        self._waits.remove()
        self._backward.remove()
        self._adds = []  # a cycle that ends in another thread, or in a step under way, is too late
        call_each(Stat.flush, self._stats)

    def optimizer_began(self, now_ns: int) -> None:
        """Begin the stage ``optimizer``."""
        mine = self._thread.cycle
        if self._graph() != NO_GRAPH:
            mine = mine or self._owner  # autograd runs it in another thread
            if mine is not None:
                mine.cycle.optimizer_began_in_backward()
        elif mine is not None:
            mine.optimizer_ns = now_ns
            mine.cycle.optimizer_began(now_ns)

    def optimizer_ended(self, now_ns: int) -> None:
        """End the stage ``optimizer``."""
        mine = self._thread.cycle
        if mine is not None and self._graph() == NO_GRAPH:
            if listeners.active:
                record_past("training.optimizer", max(mine.optimizer_ns, mine.cycle.mark_ns), now_ns)
            mine.cycle.optimizer_ended(now_ns)
            if mine.timeline is not None:
                mine.timeline.optimizer_ended()

    def batch_began(self, now_ns: int) -> _ThreadCycle | None:
        """Begin a request for a batch, unless it is part of another one."""
        mine = self._thread.cycle
        if mine is None or self._graph() != NO_GRAPH:
            return None
        mine.cycle.batch_began(now_ns)
        if mine.timeline is not None:
            mine.timeline.batch_began()
        return mine

    def batch_ended(self, began: _ThreadCycle | None, now_ns: int, iterator: object, received: int | None) -> None:
        """End a request for a batch."""
        if began is not None:
            began.cycle.batch_ended(now_ns, iterator, received, training=torch.is_grad_enabled())
            if began.timeline is not None:
                began.timeline.batch_ended(training=began.cycle.trains)

    def backward_began(self, now_ns: int, *, nested: bool) -> _ThreadCycle | None:
        """Begin the stage ``backward``."""
        mine = self._thread.cycle
        if nested:
            return mine
        if mine is None:
            timeline = None if self._device is None else self._device.timeline()
            mine = self._thread.cycle = _ThreadCycle(self._log, timeline)
        if listeners.active:
            if mine.cycle.forward_since_ns:
                record_past("training.forward", mine.cycle.forward_since_ns, now_ns)
            if mine.end_range is None:  # else an interrupt has lost its end
                mine.end_range = open_range("training.backward")
        if mine.timeline is not None:
            mine.timeline.backward_began(asked=mine.cycle.asks, training=mine.cycle.trains)
        mine.cycle.backward_began(now_ns)
        return mine

    def backward_ended(self, now_ns: int, tail_ns: int, *, nested: bool) -> None:
        """End the stage ``backward``, and count its tail as waiting."""
        mine = self._thread.cycle
        if mine is None:
            return
        mine.cycle.waited_ns += tail_ns
        if not nested:
            if mine.end_range is not None:
                mine.end_range(None, None, None)
                mine.end_range = None
            if mine.timeline is not None:
                mine.timeline.backward_ended()
            mine.cycle.backward_ended(now_ns)

    def _waiting(self) -> Callable[[int], None] | None:
        """Begin a wait for other ranks, and return the function that ends it."""
        mine = self._thread.cycle
        return mine.wait() if mine is not None and several_ranks() else None

    def _log(self, mine: _ThreadCycle, stages: list[int] | None) -> None:
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

    def _takes_over(self, mine: _ThreadCycle) -> bool:
        """Return whether a thread becomes the training thread, because there is none, or none that trains."""
        self._others_cycles += 1
        if self._owner is None or not self._owner.thread.is_alive() or self._others_cycles > _IDLE:
            self._owner = mine
            return True
        return False


class _ThreadCycle:
    """The cycle of one thread, and what it is doing."""

    def __init__(self, log: Callable[[_ThreadCycle, list[int] | None], None], timeline: Timeline | None) -> None:
        self.timeline = timeline
        self.thread: Thread = current_thread()
        self.cycle = Cycle(partial(log, self))
        self.optimizer_ns = 0  # when the last optimizer began
        self.end_range: Any = None

    def waited(self) -> int:
        """Return the nanoseconds that the thread has waited for other ranks."""
        return self.cycle.waited_ns

    def gradients_complete(self) -> None:
        """Mark on the device that the own gradients are complete."""
        if self.timeline is not None:
            self.timeline.gradients_complete()

    def wait(self) -> Callable[[int], None]:
        """Begin a wait, and return the function that ends it. It contains the waits within it."""
        before_ns = self.cycle.waited_ns

        def end(ns: int) -> None:
            self.cycle.waited_ns = before_ns + ns

        return end


class _Thread(local):
    cycle: _ThreadCycle | None = None
