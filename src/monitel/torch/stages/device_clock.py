"""Moments on a device, whose distances are read later."""

from __future__ import annotations

import time
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monitel.torch._compat import Missing
from monitel.torch.scalars.staging_ring import log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.pending import PendingSample
    from monitel.torch.scalars.graph_capture import CaptureGuard
    from monitel.torch.scalars.staging_ring import Owner

    Mark = tuple[int, Any]  # the index of the stage that has ended, and an event

EVENTS = 4096  #: Events that exist at most.
_TIMEOUT_S = 300.0  # how long a cycle may be under way before it is given up

#: Events of cycles that were given up, and of a forked child's parent: freeing them may abort the process.
_abandoned: list[object] = []


def device_module() -> Any:
    """Return torch's module of the accelerator, such as torch.cuda; raise Missing if its streams cannot be timed."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise Missing("this machine has no accelerator")
    module = torch.get_device_module(device)
    if not (hasattr(module, "Event") and hasattr(module, "current_stream")):
        raise Missing(f"torch.{device.type} has no events on streams")
    return module


class _Cycle(NamedTuple):
    marks: Sequence[Mark]
    samples: Sequence[PendingSample]  # by stage
    done: Sequence[Any]  # events that are free afterwards
    number: int
    put: float  # monotonic seconds


class DeviceClock:
    """Records events on the current stream of the job's device, and reads the times between them.

    The training thread records events. One thread at a time calls ``advance()``, which reads those that the device has
    reached; nothing waits for the device. Events are reused. While a graph is captured, none is recorded or read.

    Args:
        captures: Excludes graph captures while the device is called.
        lost: Called with the number of lost values, a reason ("capture", "full", "failed", "timeout" or "exit"), and
            optionally details.

    Attributes:
        opened: Number of cycles that were put so far.
    """

    def __init__(self, captures: CaptureGuard, lost: Callable[..., None]) -> None:
        self._captures = captures
        self._lost = lost
        self._lock = RLock()
        self._module: Any = None
        self._is_capturing: Callable[[], bool]
        self._free: deque[Any] = deque()
        self._events: list[Any] = []  # all
        self._cycles: deque[_Cycle] = deque()
        self.opened = 0

    def mark(self) -> tuple[Any, str]:
        """Record an event on the current stream.

        Returns:
            The event, and an empty str; or None and the reason: "unused" if the job has not used the device yet, or one
            of the reasons for a loss.
        """
        try:
            if self._module is None and not self._find_device():
                return None, "unused"
            if self._is_capturing():
                return None, "capture"
            event = self._event()
            if event is None:
                return None, "full"
            event.record(self._module.current_stream())
        except Exception:  # the device has failed; the job is about to notice
            return None, "failed"
        return event, ""

    def free(self, events: Sequence[Any]) -> None:
        """Take back events that nobody needs."""
        self._free.extend(events)

    def put(self, marks: Sequence[Mark], samples: Sequence[PendingSample]) -> None:
        """Read a cycle when the device has reached its end.

        Args:
            marks: The boundaries. The first one is the begin of the cycle, the last one that of the next cycle, which
                takes it back.
            samples: Receives the duration of each stage in seconds.
        """
        self._put(marks, samples, [event for _, event in marks[:-1]])

    def free_later(self, event: Any) -> None:
        """Take back an event that the last cycle ends with, after that was read."""
        self._put((), (), (event,))

    def advance(self) -> bool:
        """Deliver the cycles that the device has ended; return whether there was any."""
        owners: list[Owner] = []
        reason: tuple[object, ...] = ()
        arrived = False
        with self._captures.device_calls() as allowed:
            try:
                while allowed and self._cycles and all(event.query() for _, event in self._cycles[0].marks):
                    cycle = self._cycles[0]
                    owners += _resolve(cycle)
                    arrived = True
                    with self._lock:
                        self._cycles.popleft()
                    self.free(cycle.done)
            except Exception as error:
                reason = "failed", error
        if not reason and self._cycles and time.monotonic() > self._cycles[0].put + _TIMEOUT_S:
            reason = ("timeout",)
        log(owners + self._give_up(*reason) if reason else owners)
        return arrived

    def has_pending(self, up_to: int) -> bool:
        """Return whether any of the first ``up_to`` cycles is pending."""
        with self._lock:
            return bool(self._cycles) and self._cycles[0].number <= up_to

    def abandon(self) -> None:
        """Give up all pending cycles as lost, with the reason "exit"."""
        log(self._give_up("exit"))

    def _put(self, marks: Sequence[Mark], samples: Sequence[PendingSample], done: Sequence[Any]) -> None:
        with self._lock:
            self.opened += 1
            self._cycles.append(_Cycle(marks, samples, done, self.opened, time.monotonic()))

    def _find_device(self) -> bool:
        """Find the job's device, and return whether the job uses it: nothing here initializes a device."""
        module = device_module()
        if getattr(module, "is_initialized", lambda: True)():
            self._is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)
            self._module = module
        return self._module is not None

    def _event(self) -> Any:
        try:
            return self._free.popleft()
        except IndexError:
            pass
        if len(self._events) == EVENTS:
            return None
        self._events.append(event := self._module.Event(enable_timing=True))
        return event

    def _give_up(self, *reason: object) -> list[Owner]:
        with self._lock:
            cycles = list(self._cycles)
            self._cycles.clear()
        _abandoned.extend(cycles)
        samples = [sample for cycle in cycles for sample in cycle.samples]
        if samples:
            self._lost(len(samples), *reason)
        return [sample.resolve(None) for sample in samples]


def _resolve(cycle: _Cycle) -> list[Owner]:
    """Set the durations of a cycle's stages."""
    seconds = [0.0] * len(cycle.samples)
    for (_, begin), (stage, end) in zip(cycle.marks, cycle.marks[1:], strict=False):
        seconds[stage] += begin.elapsed_time(end) / 1e3
    return [sample.resolve(value) for sample, value in zip(cycle.samples, seconds, strict=True)]
