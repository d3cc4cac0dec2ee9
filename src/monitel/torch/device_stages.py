"""The stages of a training step on the device: events on its stream, whose distances are read later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from monitel.process.failures import call_each
from monitel.stats.pending import PendingSample
from monitel.stats.stat import Stat
from monitel.torch.cycle import STAGES, Cycle
from monitel.torch.devices import Batch, DeviceQueue, Fetcher
from monitel.torch.hooks import Missing, Source
from monitel.torch.recording import several_ranks, stage_stat
from monitel.torch.steps import OptimizerSteps, Skipped

Mark = tuple[int, Any]  # the index of the stage that has ended, and an event

CYCLES = 512  #: Cycles whose end the device has not reached, at most.
_MANY = 64  # cycles that are read without waiting for the next poll
_REQUIRED = ("Event", "current_device", "current_stream", "device")  # names in the module of a device

_OPTIMIZER, _OTHER, _DATA, _FORWARD, _BACKWARD, _SYNC = range(len(STAGES))
_MARKS = 1024  # of one cycle at most


def accelerator() -> tuple[str, Any]:
    """Return the type of the accelerator, and torch's module of it."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise Missing("this torch was built for no accelerator")
    module = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in _REQUIRED):
        raise Missing(f"torch.{device.type} has no events on streams")
    return device.type, module


class _Cycle(Batch):
    def __init__(self, marks: Sequence[Mark], samples: Sequence[PendingSample]) -> None:
        self.marks = marks
        self.pending = samples  # by stage
        self.sent = time.monotonic()

    def has_arrived(self) -> bool:
        return all(event.query() for _, event in self.marks)

    def values(self) -> Sequence[float]:
        """Return the seconds of each stage.

        A stream may reach an event before another one has reached the previous boundary: that stage takes no time.
        """
        seconds = [0.0] * len(self.pending)
        ahead_ms = 0.0  # by which the last event was early, as a negative number
        for (_, begin), (stage, end) in zip(self.marks, self.marks[1:], strict=False):
            ms = ahead_ms + begin.elapsed_time(end)
            ahead_ms = min(ms, 0.0)
            seconds[stage] += max(ms, 0.0) / 1e3
        return seconds


class DeviceClock(DeviceQueue):
    """Records events on the current stream of the job's device, and reads the times between them, cycle by cycle.

    No other device is used: that would take memory of it. A thread's current device may be another one than the job's.
    """

    def find_device(self, optimizer: Any) -> None:
        """Find the device of the job, once: that of an optimizer's first parameter, or else the current one.

        Nothing here initializes the accelerator, so it is not found before the job has done that.
        """
        if self._device is not None:
            return
        with suppress(Exception):  # the device has failed; the job is about to notice
            kind, module = accelerator()
            if not getattr(module, "is_initialized", lambda: True)():
                return
            self._module = module
            groups = getattr(optimizer, "param_groups", ())
            device = next((each.device for group in groups for each in group["params"]), None)
            on_it = device is not None and device.type == kind
            self._device = device if on_it else torch.device(kind, module.current_device())

    def mark(self) -> tuple[Any, str]:
        """Return a recorded event, or None and the reason: "unused" before the device is known, or that of a loss."""
        if self._device is None:
            return None, "unused"
        try:
            if self.is_capturing():
                return None, "capture"
            if len(self._batches) >= CYCLES:
                return None, "full"
            event = self._module.Event(enable_timing=True)
            event.record(self._module.current_stream(self._device))
        except Exception:  # the device has failed; the job is about to notice
            return None, "failed"
        return event, ""

    def put(self, marks: Sequence[Mark], samples: Sequence[PendingSample]) -> None:
        """Read a cycle when the device has reached its last mark, at which the next cycle begins."""
        with self._lock:
            self._batches.append(_Cycle(marks, samples))
        if len(self._batches) % _MANY == 0:  # a fast loop has more in a second than may be pending
            self._wake()


class DeviceStages(Source):
    """Measures the stages of a cycle by events on the current stream of the job's device."""

    def __init__(self, window_size: float, group: str | None, optimizers: OptimizerSteps, fetcher: Fetcher) -> None:
        self._stats = [stage_stat("training.stage.device.duration", stage, group, window_size) for stage in STAGES]
        self.needs = (optimizers, fetcher)
        self._fetcher = fetcher
        self._clock: DeviceClock | None = None
        optimizers.listeners.append(self._optimizer_stepped)

    def install(self) -> None:
        accelerator()
        clock = DeviceClock(self._fetcher.captures, self._fetcher.count_lost, self._fetcher.wake)
        if self._fetcher.serve(clock):
            self._clock = clock

    def reset(self) -> None:
        """A forked child cannot use the parent's device; the fetcher keeps its events."""
        self._clock = None

    def remove(self) -> None:
        self._clock = None
        call_each(Stat.flush, self._stats)

    end = remove

    def _optimizer_stepped(self, optimizer: object, _skipped: Skipped, _now_ns: int) -> None:
        if self._clock is not None:
            self._clock.find_device(optimizer)

    def cycle(self, ended: Callable[[Cycle, list[int] | None], None]) -> Cycle:
        return Cycle(ended) if self._clock is None else DeviceCycle(ended, self._clock)

    def log(self, cycle: DeviceCycle) -> None:
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
    """A cycle whose boundaries are also recorded on the device, as events."""

    def __init__(self, ended: Callable[[Cycle, list[int] | None], None], clock: DeviceClock) -> None:
        super().__init__(ended)
        self._clock = clock
        self._lost = ""  # reason why the cycle under way is lost
        self._marks: list[Mark] = []
        self._begun: Any = None  # event at the begin of the request under way
        self._batch: tuple[Any, Any] | None = None  # events at the begin and the end of the last request for training
        self._complete = False

    def optimizer_ended(self, now_ns: int) -> None:
        super().optimizer_ended(now_ns)
        if len(self._marks) > 1 and self._marks[-1][0] == _OPTIMIZER:
            self._marks.pop()
        self._record(_OPTIMIZER)

    def batch_began(self, now_ns: int) -> None:
        super().batch_began(now_ns)
        self._begun = self._event()

    def batch_ended(self, now_ns: int, iterator: object, received: int | None, training: bool) -> None:
        super().batch_ended(now_ns, iterator, received, training)
        begun, self._begun = self._begun, None
        end = self._event() if self.trains and begun is not None else None
        self._batch = None if end is None else (begun, end)

    def backward_began(self, now_ns: int) -> None:
        asked, training, batch = self.asks, self.trains, self._batch
        super().backward_began(now_ns)
        if batch is not None and training:
            self._marks += [(_OTHER, batch[0]), (_DATA, batch[1])]
        self._batch = None
        self._record(_FORWARD if training or not asked else _OTHER)
        self._complete = False

    def gradients_complete(self) -> None:
        super().gradients_complete()
        self._record(_BACKWARD)
        self._complete = True

    def backward_ended(self, now_ns: int) -> None:
        """If events of the cycle are missing, the next one may begin here."""
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
        if self._lost:
            return None
        event, why = self._clock.mark() if len(self._marks) < _MARKS else (None, "full")
        if event is None:
            self._lost = why
            self._marks = []
        return event
