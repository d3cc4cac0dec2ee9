"""Moments on a device, whose distances are read later."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monitel.torch.hooks import Missing
from monitel.torch.scalars.device_queue import DeviceQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.stats.pending import PendingSample
    from monitel.torch.scalars.device_queue import CaptureGuard, Owner

    Mark = tuple[int, Any]  # the index of the stage that has ended, and an event

EVENTS = 4096  #: Events that the device has not reached, at most.
_REQUIRED = ("Event", "current_device", "current_stream", "device")  # names in the module of a device


def accelerator() -> tuple[str, Any]:
    """Return the type of the accelerator, and torch's module of it, such as torch.cuda.

    Raises:
        Missing: There is none, or its streams cannot be timed.
    """
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise Missing("this torch was built for no accelerator")
    module = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in _REQUIRED):
        raise Missing(f"torch.{device.type} has no events on streams")
    return device.type, module


class _Cycle(NamedTuple):
    marks: Sequence[Mark]
    samples: Sequence[PendingSample]  # by stage
    put: float  # monotonic seconds


class DeviceClock(DeviceQueue):
    """Records events on the current stream of the job's device, and reads the times between them, cycle by cycle.

    No other device is used: that would take memory of it, and its events cannot be compared. The current device of a
    thread may be another one: that of a new thread is the first, and a job may name its device in each call instead.

    The training thread records events. While a graph is captured, none is recorded or read.
    """

    def __init__(self, captures: CaptureGuard, lost: Callable[..., None]) -> None:
        super().__init__(captures, lost)
        self._is_capturing: Callable[[], bool]
        self._cycles: deque[_Cycle] = deque()
        self._events = 0  # in these cycles

    @property
    def opened(self) -> int:
        """Number of cycles that were put so far."""
        with self._lock:
            return self._arrived + len(self._cycles)

    def find_device(self, optimizer: Any) -> None:
        """Find the device of the job, once: that of an optimizer's first parameter, or else the current one.

        It is not found before the job has initialized the accelerator, because nothing here does that.
        """
        if self._device is not None:
            return
        with suppress(Exception):  # the device has failed; the job is about to notice
            kind, module = accelerator()
            if not getattr(module, "is_initialized", lambda: True)():
                return
            self._is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)
            self._module = module
            device = _device_of(optimizer)
            on_it = device is not None and device.type == kind
            self._device = device if on_it else torch.device(kind, module.current_device())

    def mark(self) -> tuple[Any, str]:
        """Record an event on the current stream of the job's device.

        Returns:
            The event, and an empty str; or None and the reason: "unused" if the device is not known yet, or one of the
            reasons for a loss.
        """
        if self._device is None:
            return None, "unused"
        try:
            if self._is_capturing():
                return None, "capture"
            if self._events >= EVENTS:
                return None, "full"
            event = self._module.Event(enable_timing=True)
            event.record(self._module.current_stream(self._device))
        except Exception:  # the device has failed; the job is about to notice
            return None, "failed"
        return event, ""

    def put(self, marks: Sequence[Mark], samples: Sequence[PendingSample]) -> None:
        """Read a cycle when the device has reached its end.

        Args:
            marks: The boundaries. The first one is the begin of the cycle, the last one that of the next cycle.
            samples: Receives the duration of each stage in seconds.
        """
        with self._lock:
            self._cycles.append(_Cycle(marks, samples, time.monotonic()))
            self._events += len(marks)

    def _deliver(self, owners: list[Owner]) -> None:
        """Read the cycles that the device has ended."""
        while self._cycles and all(event.query() for _, event in self._cycles[0].marks):
            owners += _resolve(self._cycles[0])
            with self._lock:
                self._events -= len(self._cycles.popleft().marks)
                self._arrived += 1

    def _oldest(self) -> float:
        return self._cycles[0].put if self._cycles else math.inf

    def _take(self) -> tuple[object, Sequence[PendingSample]]:
        with self._lock:
            cycles = list(self._cycles)
            self._cycles.clear()
            self._events = 0
            self._arrived += len(cycles)
        return cycles, [sample for cycle in cycles for sample in cycle.samples]


def _resolve(cycle: _Cycle) -> list[Owner]:
    """Set the durations of a cycle's stages.

    A stream may have reached its event before another one has reached the previous boundary, as where batches are
    fetched ahead on a separate stream. The stage then takes no time, and the following one begins at that boundary.
    """
    seconds = [0.0] * len(cycle.samples)
    ahead_ms = 0.0  # by which the last event was early, as a negative number
    for (_, begin), (stage, end) in zip(cycle.marks, cycle.marks[1:], strict=False):
        ms = ahead_ms + begin.elapsed_time(end)
        ahead_ms = min(ms, 0.0)
        seconds[stage] += max(ms, 0.0) / 1e3
    return [sample.resolve(value) for sample, value in zip(cycle.samples, seconds, strict=True)]


def _device_of(optimizer: Any) -> torch.device | None:
    """Return the device of an optimizer's first parameter; None if it has none."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            device: torch.device = parameter.device
            return device
    return None
