"""The durations of the stages of a training step on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.process.failures import call_each
from monitel.stats.stat import Stat
from monitel.torch.hooks import Source
from monitel.torch.recording import several_ranks, stage_stat
from monitel.torch.stages.cycle import STAGES, Cycle
from monitel.torch.stages.device_clock import DeviceClock, accelerator

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.stats.pending import PendingSample
    from monitel.torch.boundaries.optimizer_steps import OptimizerSteps, Results
    from monitel.torch.scalars.fetcher import Fetcher
    from monitel.torch.stages.device_clock import Mark

_OPTIMIZER, _OTHER, _DATA, _FORWARD, _BACKWARD, _SYNC = range(len(STAGES))
_MARKS = 1024  # of one cycle at most


class DeviceStages(Source):
    """Measures the stages of a cycle by events on the current stream of the job's device.

    The device is known when an optimizer has made its first step, so the cycle after that one is the first.

    Stat: ``training.stage.device.duration`` in seconds, one sample for each cycle and stage, in the window in which the
    cycle has ended on the host. The values are read later, without a wait. A cycle whose values are lost counts in
    ``training.tensors.lost``.

    Args:
        window_size: Window size of the Stats in seconds.
        group: As for :class:`monitel.torch.stages.stages.Stages`.
        optimizers: Reports the steps of optimizers.
        fetcher: Reads the events later.
    """

    def __init__(self, window_size: float, group: str | None, optimizers: OptimizerSteps, fetcher: Fetcher) -> None:
        self._stats = [stage_stat("training.stage.device.duration", stage, group, window_size) for stage in STAGES]
        self.needs = (optimizers, fetcher)
        self._fetcher = fetcher
        self._clock: DeviceClock | None = None
        optimizers.listeners.append(self._optimizer_stepped)

    def install(self) -> None:
        """Start to record events; raise Missing without an accelerator."""
        accelerator()
        clock = DeviceClock(self._fetcher.captures, self._fetcher.count_lost)
        if self._fetcher.serve(clock):
            self._clock = clock

    def reset(self) -> None:
        """Record nothing. For a forked child, which cannot use the parent's device; the fetcher keeps its events."""
        self._clock = None

    def remove(self) -> None:
        """Wait for pending cycles as a flush does, give up the rest, and flush the Stats."""
        self._clock = None
        call_each(Stat.flush, self._stats)

    end = remove

    def _optimizer_stepped(self, optimizer: object, _results: Results, _now_ns: int) -> None:
        """Find the device of the job."""
        if self._clock is not None:
            self._clock.find_device(optimizer)

    def cycle(self, ended: Callable[[Cycle, list[int] | None], None]) -> Cycle:
        """Return a new cycle for a thread, which is also measured on the device while events are recorded."""
        return Cycle(ended) if self._clock is None else DeviceCycle(ended, self._clock)

    def log(self, cycle: DeviceCycle) -> None:
        """Log what a cycle has recorded on the device, unless it began before the device was known."""
        marks, lost = cycle.cut_marks()
        clock = self._clock
        if clock is None or lost == "unused":  # it has been removed, or the device is not known yet
            return
        stats = self._stats if several_ranks() else self._stats[:_SYNC]
        if lost:
            self._fetcher.count_lost(len(stats), lost)
            return
        samples: list[PendingSample] = []
        for stat in stats:
            stat._add_pending(samples.append, self._fetcher.wait)
        clock.put(marks, samples)


class DeviceCycle(Cycle):
    """A cycle whose boundaries are also recorded on the device, as events.

    They are the end of the optimizer, begin and end of the last request for a batch, begin of backward, the moment at
    which the rank's gradients are complete, and the end of backward.
    """

    def __init__(self, ended: Callable[[Cycle, list[int] | None], None], clock: DeviceClock) -> None:
        super().__init__(ended)
        self._clock = clock
        self._lost = ""  # reason why the cycle under way is lost
        self._marks: list[Mark] = []
        self._begun: Any = None  # event at the begin of the request under way
        self._batch: tuple[Any, Any] | None = None  # events at the begin and the end of the last request for training
        self._complete = False

    def optimizer_ended(self, now_ns: int) -> None:
        """Mark the end of the optimizer, after the cycle was cut before it."""
        super().optimizer_ended(now_ns)
        if len(self._marks) > 1 and self._marks[-1][0] == _OPTIMIZER:
            self._marks.pop()
        self._record(_OPTIMIZER)

    def batch_began(self, now_ns: int) -> None:
        """Record the begin of a request."""
        super().batch_began(now_ns)
        self._begun = self._event()

    def batch_ended(self, now_ns: int, iterator: object, received: int | None, training: bool) -> None:
        """Record the end of a request, if its batch may be one for training."""
        super().batch_ended(now_ns, iterator, received, training)
        begun, self._begun = self._begun, None
        end = self._event() if self.trains and begun is not None else None
        self._batch = None if end is None else (begun, end)

    def backward_began(self, now_ns: int) -> None:
        """Mark the begin of backward, and of what was before it."""
        asked, training, batch = self.asks, self.trains, self._batch
        super().backward_began(now_ns)
        if batch is not None and training:
            self._marks += [(_OTHER, batch[0]), (_DATA, batch[1])]
        self._batch = None
        self._record(_FORWARD if training or not asked else _OTHER)
        self._complete = False

    def gradients_complete(self) -> None:
        """Mark that the rank's gradients are complete."""
        super().gradients_complete()
        self._record(_BACKWARD)
        self._complete = True

    def backward_ended(self, now_ns: int) -> None:
        """Mark the end of backward, before the cycle is cut there.

        If events of the cycle are missing, the next one may begin here.
        """
        lost, self._lost = self._lost, ""
        if lost:
            self._marks = []
        self._record(_SYNC if self._complete else _BACKWARD)
        self._lost = lost or self._lost
        self._complete = False
        super().backward_ended(now_ns)

    def cut_marks(self) -> tuple[list[Mark], str]:
        """End the cycle at the last boundary, where the next one begins; return its marks, and why some are missing."""
        marks, lost = self._marks, self._lost or ("" if self._marks else "unused")
        self._marks = marks[-1:]
        self._lost = "" if marks else lost
        return marks, lost

    def _record(self, stage: int) -> None:
        event = self._event()
        if event is not None:
            self._marks.append((stage, event))

    def _event(self) -> Any:
        """Return an event that is recorded now; None if the cycle is lost."""
        if self._lost:
            return None
        event, why = self._clock.mark() if len(self._marks) < _MARKS else (None, "full")
        if event is None:
            self._lost = why
            self._marks = []
        return event
