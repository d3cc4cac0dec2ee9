"""The durations of the stages of a training step on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.failures import call_each
from monitel.stats import Stat
from monitel.torch.hooks import Source
from monitel.torch.recording import several_ranks, stage_stat
from monitel.torch.stages.cycle import STAGES
from monitel.torch.stages.device_clock import DeviceClock, accelerator

if TYPE_CHECKING:
    from monitel.pending import PendingSample
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

    def timeline(self) -> Timeline | None:
        """Return a new timeline for a thread; None if events are not recorded."""
        return None if self._clock is None else Timeline(self._clock)

    def log(self, timeline: Timeline) -> None:
        """Log the cycle that a timeline has recorded, unless it began before the timeline."""
        if self._clock is None:  # it has been removed
            timeline.discard()
            return
        ranks = several_ranks()
        stats = self._stats if ranks else self._stats[:_SYNC]
        marks = timeline.cut()
        if marks is None:
            if timeline.lost != "unused":
                self._fetcher.count_lost(len(stats), timeline.lost)
            return
        samples: list[PendingSample] = []
        for stat in stats:
            stat._add_pending(samples.append, self._fetcher.wait)
        timeline.clock.put(marks, samples)


class Timeline:
    """The boundaries of the stages of one thread's cycle, as events.

    The boundaries are the end of the optimizer, begin and end of the last request for a batch, begin of backward, the
    moment at which the rank's gradients are complete, and the end of backward.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self.lost = ""  # reason why the last cycle is lost
        self._lost = ""  # the same for the cycle under way
        self._marks: list[Mark] = []
        self._shared: Any = None  # event at which the last cycle has ended, and this one has begun
        self._asking: Any = None  # begin of the request under way
        self._batch: tuple[Any, Any] | None = None  # begin and end of the last request
        self._complete = False

    def optimizer_ended(self) -> None:
        """An optimizer has ended its step."""
        if self._marks and self._marks[-1][0] == _OPTIMIZER and len(self._marks) > 1:
            self.clock.free([self._marks.pop()[1]])
        self._mark(_OPTIMIZER)

    def batch_began(self) -> None:
        """A batch is asked for."""
        self._asking = self._event()

    def batch_ended(self, *, training: bool) -> None:
        """A request has ended; training: whether its batch may be one for training."""
        begin, self._asking = self._asking, None
        end = self._event() if training and begin is not None else None
        self._discard_batch()
        if end is not None:
            self._batch = begin, end
        elif begin is not None:
            self.clock.free([begin])

    def backward_began(self, *, asked: bool, training: bool) -> None:
        """Backward begins.

        Args:
            asked: Whether there was a request for a batch since the last boundary.
            training: Whether the last one was for training.
        """
        if self._batch is not None and training:
            batch, self._batch = self._batch, None
            self._marks += [(_OTHER, batch[0]), (_DATA, batch[1])]
        self._discard_batch()
        self._mark(_FORWARD if training or not asked else _OTHER)
        self._complete = False

    def gradients_complete(self) -> None:
        """The own gradients are complete; waiting for those of other ranks follows."""
        self._mark(_BACKWARD)
        self._complete = True

    def backward_ended(self) -> None:
        """Backward has ended. If events of the cycle are missing, the next cycle may begin here."""
        lost, self._lost = self._lost, ""
        if lost:
            self._free_marks()
        self._mark(_SYNC if self._complete else _BACKWARD)
        self._lost = lost or self._lost
        self._complete = False

    def cut(self) -> list[Mark] | None:
        """End the cycle at the last boundary; return its marks, None if some are missing. The next one begins there."""
        marks, lost = self._marks, self._lost
        self._marks = marks[-1:]
        self._lost = "" if marks else lost or "unused"
        if lost or not marks:
            self.lost = lost or "unused"
            return None
        self._shared = marks[-1][1]
        return marks

    def discard(self) -> None:
        """Forget the cycle. The next one begins at the last boundary."""
        self.clock.free([event for _, event in (self.cut() or [])[:-1]])

    def _mark(self, stage: int) -> None:
        event = self._event()
        if event is not None:
            self._marks.append((stage, event))

    def _event(self) -> Any:
        """Return an event that is recorded now; None if the cycle is lost, whose events are then taken back."""
        if self._lost:
            return None
        event, why = self.clock.mark() if len(self._marks) < _MARKS else (None, "full")
        if event is None:
            self._lost = why
            self._free_marks()
        return event

    def _free_marks(self) -> None:
        events = [event for _, event in self._marks]
        if events and events[0] is self._shared:
            self.clock.free_later(events.pop(0))
        self.clock.free(events)
        self._marks = []

    def _discard_batch(self) -> None:
        if self._batch is not None:
            self.clock.free(list(self._batch))
            self._batch = None
