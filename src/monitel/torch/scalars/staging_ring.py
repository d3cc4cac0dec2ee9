"""Device memory in which numbers are staged until they are copied to the host.

Any thread may call ``put()``, ``has_pending()`` and ``is_capturing()``. One thread at a time calls ``advance()``, which
:class:`monitel.torch.scalars.fetcher.Fetcher` ensures by a lock; ``abandon()`` follows when that thread has ended or
timed out. Apart from the allocation in the first ``put()``, only ``advance()`` may wait for a device.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monitel.failures import call_each
from monitel.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monitel.torch.scalars.graph_capture import CaptureGuard

PAGES = 16
SLOTS = 512  #: Slots per page. All pages together take 64 KiB of device memory and as much pinned memory.
_TIMEOUT_S = 300.0  # how long a page may be in use before its numbers are given up

#: Pages that were given up. The device may still write to them, and freeing memory after a failure aborts the process.
_abandoned_pages: list[Page] = []


class Owner(Protocol):
    """A Stat with pending samples, or a pending event."""

    def _log_resolved(self) -> None:
        """Log whatever is complete."""


class Pending(Protocol):
    """A sample or event detail whose number is not known yet."""

    def resolve(self, value: float | None) -> Owner:
        """Set the number, None if it is lost, and return the owner, whose ``_log_resolved()`` the caller then calls."""


class State(Enum):
    """Progress of a page."""

    OPEN = auto()
    CLOSED = auto()  # full, or next to be copied
    SENT = auto()
    ARRIVED = auto()


class Page:
    """Numbers that are fetched together: device memory, and host memory of the same size."""

    def __init__(self, on_device: Tensor, on_host: Tensor, module: Any) -> None:
        self.on_device, self.on_host = on_device, on_host
        self.written, self.arrived = module.Event(), module.Event()
        self.pending: list[Pending | None] = []  # by slot; None where the write failed

    def reuse(self, stream: Any, number: int) -> None:
        """Start filling the page on a stream. ``number`` counts the pages of the ring in the order of their use."""
        self.state = State.OPEN
        self.stream = stream
        self.number = number
        self.opened = time.monotonic()


class StagingRing:
    """The pages of one device, which are allocated together and reused in turn.

    ``put()`` copies a number into a slot on the current stream, so later changes to its tensor have no effect. Pages
    are copied to the host on a separate stream, one copy per page, and read when that copy is complete.

    Args:
        device: The device of the numbers.
        captures: Excludes graph captures while the device is called for more than a copy.
        wake: Called when a page is full.
        lost: Called with the number of lost numbers, a reason ("capture", "full", "failed", "timeout" or "exit"), and
            optionally details.
    """

    def __init__(
        self, device: torch.device, captures: CaptureGuard, wake: Callable[[], None], lost: Callable[..., None]
    ) -> None:
        self.opened = 0  # pages opened so far
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._is_capturing = getattr(self._module, "is_current_stream_capturing", None)
        self._captures = captures
        self._wake = wake
        self._lost = lost
        self._lock = RLock()  # of the lists; held while one number is copied, never while waiting for the device
        self._allocated: Any = None  # event: previous use of the pages' memory is over
        self._free: deque[Page] = deque()
        self._used: list[Page] = []
        self._open: dict[Any, Page] = {}  # by stream

    def is_capturing(self) -> bool:
        """Return whether operations on the current stream are recorded into a graph instead of executed."""
        return self._is_capturing is not None and self._is_capturing()

    def put(self, number: Tensor, pending: Pending) -> None:
        """Stage a tensor of one element for ``pending``: one launch on the current stream, without waiting.

        If no slot is free, because the device is too far behind, the number is lost.
        """
        try:
            loss = self._stage(number.detach(), pending)
        except Exception as error:
            loss = ("failed", error)
        except BaseException:
            pending.resolve(None)
            raise
        if loss is not None:
            pending.resolve(None)
            self._lost(1, *loss)

    def advance(self) -> bool:
        """Deliver the numbers that have arrived, and start to copy those put so far. For a single thread.

        Returns:
            Whether anything has arrived.
        """
        reason: tuple[object, ...] = ()
        with self._captures.device_calls() as allowed:
            if allowed and self._allocated is not None:
                try:
                    with self._module.device(self._device):  # else this thread would use the first device, too
                        self._find_arrived()
                        self._send()
                except Exception as error:  # the device has failed; the job is about to notice
                    reason = "failed", error
        arrived = [page for page in self._used if page.state is State.ARRIVED]
        owners = [owner for page in arrived for owner in self._resolve(page)]
        if not reason and self._used and time.monotonic() > self._used[0].opened + _TIMEOUT_S:
            reason = ("timeout",)
        log(owners + self._abandon(*reason) if reason else owners)
        return bool(arrived)

    def has_pending(self, up_to: int) -> bool:
        """Return whether numbers are pending in any of the first ``up_to`` pages that were opened."""
        with self._lock:
            return any(page.number <= up_to for page in self._used)

    def abandon(self) -> None:
        """Give up all pending numbers as lost, with the reason "exit"."""
        log(self._abandon("exit"))

    def _stage(self, number: Tensor, pending: Pending) -> tuple[object, ...] | None:
        """Copy the number into a slot, or return the reason why it is lost."""
        if self._allocated is None and not self._allocate():
            return ("capture",)
        stream = self._module.current_stream(self._device)
        with self._lock:
            page = self._open.get(stream)
            if page is None:
                if not self._free:
                    return ("full",)
                page = self._open_page(stream)
            slot = len(page.pending)
            page.pending.append(pending)  # first: a signal handler that adds a sample takes the next slot
            if full := slot + 1 == SLOTS:
                del self._open[stream]
                page.state = State.CLOSED
            try:
                page.on_device[slot].copy_(number.reshape(()) if number.dim() else number, non_blocking=True)
                number.record_stream(stream)  # keeps its memory from being reused before the copy
            except BaseException:
                page.pending[slot] = None
                raise
        if full:
            self._wake()
        return None

    def _allocate(self) -> bool:
        """Allocate all pages, unless a capture is in progress; return whether it was not."""
        with self._captures.device_calls() as allowed, self._lock, torch.inference_mode(False):
            if allowed and self._allocated is None:
                shape, kind = (PAGES, SLOTS), torch.float64
                on_device, on_host = torch.empty(shape, dtype=kind, device=self._device), _pinned(shape, kind)
                self._copying = self._module.Stream(self._device)
                self._free.extend(Page(on_device[n], on_host[n], self._module) for n in range(PAGES))
                allocated = self._module.Event()
                allocated.record(self._module.current_stream(self._device))
                self._allocated = allocated
            return allowed

    def _open_page(self, stream: Any) -> Page:
        self.opened += 1
        page = self._free.popleft()
        page.reuse(stream, self.opened)
        stream.wait_event(self._allocated)
        self._open[stream] = page
        self._used.append(page)
        return page

    def _find_arrived(self) -> None:
        for page in self._used:
            if page.state is State.SENT and page.arrived.query():
                page.state = State.ARRIVED

    def _send(self) -> None:
        """Start to copy full pages, and partly filled ones if no copy is in progress, which they would queue behind."""
        with self._lock:
            states = {page.state for page in self._used}
            if not states & {State.CLOSED, State.SENT}:
                for page in self._open.values():
                    page.state = State.CLOSED
                self._open.clear()
            pages = [page for page in self._used if page.state is State.CLOSED]
        for page in pages:
            page.written.record(page.stream)
            self._copying.wait_event(page.written)
            with self._module.stream(self._copying):
                used = slice(len(page.pending))
                page.on_host[used].copy_(page.on_device[used], non_blocking=True)
                page.arrived.record(self._copying)
            page.state = State.SENT

    def _resolve(self, page: Page) -> list[Owner]:
        values = page.on_host[: len(page.pending)].tolist()
        pairs = zip(page.pending, values, strict=True)
        owners = [pending.resolve(value) for pending, value in pairs if pending is not None]
        page.pending.clear()
        with self._lock:
            self._used.remove(page)
            self._free.append(page)
        return owners

    def _abandon(self, *reason: object) -> list[Owner]:
        with self._lock:
            pages, self._used = self._used, []
            self._open.clear()
        _abandoned_pages.extend(pages)
        owners = [pending.resolve(None) for page in pages for pending in page.pending if pending is not None]
        if owners:
            self._lost(len(owners), *reason)
        return owners


def _pinned(shape: tuple[int, ...], kind: Any) -> Tensor:
    try:
        return torch.empty(shape, dtype=kind, device="cpu", pin_memory=True)
    except RuntimeError:  # no pinned memory: the copy, and so the thread that fetches, waits for the device
        return torch.empty(shape, dtype=kind, device="cpu")


def log(owners: list[Owner]) -> None:
    """Have each owner log whatever is complete, once. If handlers raise, the first exception propagates at the end."""
    call_each(lambda owner: owner._log_resolved(), list(dict.fromkeys(owners)))
