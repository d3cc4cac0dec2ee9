"""Values that a device delivers later, and the captures of graphs during which nothing may ask it for them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monitel.process.failures import call_each
from monitel.process.os_threads import RLock
from monitel.torch.hooks import Patch, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TIMEOUT_S = 300.0  #: How long a device may take for a value before all that it owes are given up.
_GRAPHS = (("cuda", "CUDAGraph"), ("xpu", "XPUGraph"), ("mtia", "MTIAGraph"), ("accelerator", "Graph"))

#: Memory and events of values that were given up, and of a forked child's parent. The device may still write to them,
#: and freeing them after a failure aborts the process.
_abandoned: list[object] = []


class Owner(Protocol):
    """A Stat with pending samples, or a pending event."""

    def _log_resolved(self) -> None:
        """Log whatever is complete."""


class Pending(Protocol):
    """A sample or event detail whose number is not known yet."""

    def resolve(self, value: float | None) -> Owner:
        """Set the number, None if it is lost, and return the owner, whose ``_log_resolved()`` the caller then calls."""


class CaptureGuard(Source):
    """Tracks graph captures and keeps device calls of other threads out of them.

    By default, a capture forbids other threads every call that may wait, such as an event query, and every memory
    allocation. Such a call invalidates the capture, and with it the job (CUDA runtime API,
    ``cudaStreamCaptureModeGlobal``; pytorch/pytorch#104555). So a starting capture waits a few microseconds for device
    calls in progress, and no device call starts until the capture ends.
    """

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self.reset()

    def reset(self) -> None:
        """Discard all state. For a forked child, which has neither the capturing thread nor the owner of the lock."""
        self._lock = RLock()
        self._running = 0

    def install(self) -> None:
        """Wrap the capture methods of torch's graph classes, which torch.cuda.graph() and the compiler use too."""
        for module, name in _GRAPHS:
            graph = getattr(getattr(torch, module, None), name, None)
            if hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
                self._patches += Patch(graph, "capture_begin", self._begin), Patch(graph, "capture_end", self._end)

    def remove(self) -> None:
        """Restore torch's methods."""
        while self._patches:
            self._patches.pop().remove()

    @property
    def is_capturing(self) -> bool:
        """True while any capture is in progress. Takes no lock, so a signal handler may read it."""
        return self._running > 0

    @contextmanager
    def device_calls(self) -> Iterator[bool]:
        """Yield whether device calls are allowed. While they are, no capture starts before the block ends."""
        with self._lock:
            yield not self._running

    def _begin(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count(1)
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._count(-1)
            raise

    def _end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._running = max(0, self._running + change)  # a capture may have started before install()


class DeviceQueue(ABC):
    """Values that one device delivers later, in the order in which they were put. Nothing waits for the device.

    Any thread may put values. One thread calls ``advance()``, that of
    :class:`monitel.torch.scalars.fetcher.Fetcher`; ``abandon()`` follows when it has ended or timed out.

    Args:
        captures: Excludes graph captures while the device is called for more than a copy.
        lost: Called with the number of lost values, a reason ("capture", "full", "failed", "timeout" or "exit"), and
            optionally details.

    Attributes:
        settled: Number of entries that were delivered or given up, and logged.
    """

    def __init__(self, captures: CaptureGuard, lost: Callable[..., None]) -> None:
        self.settled = 0
        self._arrived = 0  # the same, and those that are being logged
        self._captures = captures
        self._lost = lost
        self._lock = RLock()  # of what was put; held briefly, never while waiting for the device
        self._device: torch.device | None = None
        self._module: Any = None  # torch's module of that device, such as torch.cuda

    @property
    @abstractmethod
    def opened(self) -> int:
        """Number of entries that were put so far."""

    @abstractmethod
    def _deliver(self, owners: list[Owner]) -> None:
        """Resolve what has arrived, and append the owners. The device of the queue is the current one."""

    @abstractmethod
    def _oldest(self) -> float:
        """Return since when the device owes something, in monotonic seconds; infinity if it owes nothing."""

    @abstractmethod
    def _take(self) -> tuple[object, Sequence[Pending]]:
        """Forget all entries; return what the device may still use, and the pending values."""

    def advance(self) -> bool:
        """Deliver what has arrived; return whether anything has. For a single thread."""
        owners: list[Owner] = []
        reason: tuple[object, ...] = ()
        before = self._arrived
        with self._captures.device_calls() as allowed:
            if allowed and self.opened > before:
                try:
                    with self._module.device(self._device):  # else this thread would use the first device, too
                        self._deliver(owners)
                except Exception as error:  # the device has failed; the job is about to notice
                    reason = "failed", error
        arrived = self._arrived > before
        if not reason and time.monotonic() > self._oldest() + TIMEOUT_S:
            reason = ("timeout",)
        if reason:
            owners += self._give_up(*reason)
        try:
            log(owners)
        finally:
            self.settled = self._arrived
        return arrived

    def has_pending(self, up_to: int) -> bool:
        """Return whether any of the first ``up_to`` entries is pending."""
        return self.settled < up_to

    def abandon(self) -> None:
        """Give up all that is pending as lost, with the reason "exit"."""
        try:
            log(self._give_up("exit"))
        finally:
            self.settled = self._arrived

    def _give_up(self, *reason: object) -> list[Owner]:
        kept, pending = self._take()
        _abandoned.append(kept)
        if pending:
            self._lost(len(pending), *reason)
        return [each.resolve(None) for each in pending]


def log(owners: list[Owner]) -> None:
    """Have each owner log whatever is complete, once. If handlers raise, the first exception propagates at the end."""
    call_each(lambda owner: owner._log_resolved(), list(dict.fromkeys(owners)))
