"""Where a device keeps numbers until they are fetched, so that nobody waits for it."""

from __future__ import annotations

import time
from collections import deque
from threading import Event, RLock
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monitel.registry import _each

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monitel.torch.captures import Captures

_PAGES = 16
_SLOTS = 512  # of a page: all of them are 64 KiB of the device, and as much pinned memory
_LOOK_S = 0.0005  # how often who waits looks


class Owner(Protocol):
    """A Stat, or an event that is held."""

    def _log_held(self) -> None:
        """Log what is complete."""


class Late(Protocol):
    """What wants a number."""

    def settle(self, value: float | None) -> Owner:
        """Take it, or None where it is lost; give who is to be told."""


class Page:
    """Numbers that are fetched together: on the device, and then in the host's pinned memory."""

    def __init__(self, device: torch.device, module: Any) -> None:
        self.on_device = torch.empty(_SLOTS, dtype=torch.float64, device=device)
        self.on_host = _pinned()
        self.slots = self.on_device.unbind()
        self.late: list[Late] = []
        self.number = 0  # how many were opened before it
        self.written, self.arrived = module.Event(), module.Event()


def _pinned() -> Tensor:
    try:
        return torch.empty(_SLOTS, dtype=torch.float64, device="cpu", pin_memory=True)
    except RuntimeError:  # a device that has no such memory: fetching then waits for it, in its own thread
        return torch.empty(_SLOTS, dtype=torch.float64, device="cpu")


class Ring:
    """The pages of one device, all made at once, each used over and over.

    A number is copied into a slot on the stream that is current where it is put: what happens to its tensor later does
    not matter. Pages are fetched on a stream of the ring's own, by one copy each, and read when that is done.

    Args:
        device: Whose numbers these are.
        captures: Keeps out of them whatever is not done by :meth:`put`.
        lost: Called with how many numbers are lost, and why.
    """

    def __init__(self, device: torch.device, captures: Captures, lost: Callable[[int, str], None]) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._is_capturing = getattr(self._module, "is_current_stream_capturing", None)
        self._captures = captures
        self._lost = lost
        self._lock = RLock()  # of what put() uses; nothing under it waits for the device
        self._fetching = RLock()  # of the rest; no handlers run under it
        self._side: Any = None  # the stream; with it the pages are made
        self._free: deque[Page] = deque()
        self._open: dict[Any, Page] = {}  # by stream
        self._full: deque[tuple[Any, Page]] = deque()  # with its stream
        self._sent: deque[Page] = deque()
        self._begun_pages = 0
        self._keeping = self._busy = False  # where one thread is, for its signal handlers
        self._patient = True

    def put(self, number: Tensor, late: Late) -> None:
        """Keep a tensor of one element for ``late``: one launch, on the current stream.

        Where no slot is free, because the device is far behind, the number is lost. When free pages run out this looks
        for what has arrived, and so may raise what a handler raises.
        """
        try:
            kept = self._keep(number.detach(), late)
            reason = f"{self._device} is far behind: {_PAGES * _SLOTS} numbers wait for it"
        except Exception as error:
            kept = False
            reason = f"{self._device} failed: {error}"
        if not kept:
            self._lost(1, reason)
            late.settle(None)
        if self._full or not self._free:
            self.turn()

    def capturing(self) -> bool:
        """Whether what is done on the current stream goes into a CUDA graph instead of being done."""
        return self._is_capturing is not None and self._is_capturing()

    def turn(self) -> bool:
        """Have what was put so far copied to the host, and settle what has arrived, without waiting for it.

        Where another thread is at it, nothing is done.

        Returns:
            Whether the device may be used: not while a graph is captured, and not in a signal handler that has
            interrupted this very ring.
        """
        owners: list[Owner] = []
        if not self._fetching.acquire(blocking=False):
            return True
        try:
            with self._captures.kept_out() as allowed:
                if not allowed or self._busy:
                    return False
                self._busy = True
                try:
                    self._settle(owners)
                    allowed = self._send()
                except Exception as error:  # the device has failed, and soon the job will
                    self._abandon(owners, f"{self._device} failed: {error}")
                finally:
                    self._busy = False
        finally:
            self._fetching.release()
        log(owners)
        return allowed

    def fetch(self, seconds: float) -> None:
        """Wait until what was put so far is settled, as far as :meth:`turn` can be done.

        Args:
            seconds: The longest. Where that was not enough, nobody waits again before the device has answered.
        """
        deadline = time.monotonic() + (seconds if self._patient else 0.0)
        last, pause = self._begun_pages, Event()
        while self.turn() and any(page.number <= last for page in self._unsettled()):
            if time.monotonic() >= deadline:
                self._patient = False
                return
            pause.wait(_LOOK_S)

    def close(self, seconds: float) -> None:
        """Wait for the rest, as :meth:`fetch`; what does not come is lost."""
        self.fetch(seconds)
        owners: list[Owner] = []
        with self._fetching:
            self._abandon(owners, f"{self._device} had not come to them at the end")
        log(owners)

    def _keep(self, number: Tensor, late: Late) -> bool:
        if self._side is None:
            self._make_pages()
        stream = self._module.current_stream(self._device)
        with self._lock:
            self._keeping = True
            try:
                page = self._open.get(stream) or self._begun(stream)
                if page is None:
                    return False
                page.slots[len(page.late)].copy_(number.reshape(()) if number.dim() else number, non_blocking=True)
                number.record_stream(stream)  # its memory is not used for anything else before that
                page.late.append(late)
                if len(page.late) == _SLOTS:
                    self._full.append((stream, self._open.pop(stream)))
            finally:
                self._keeping = False
        return True

    def _begun(self, stream: Any) -> Page | None:
        """A page for a stream, if one is free."""
        if not self._free:
            return None
        self._begun_pages += 1
        page = self._open[stream] = self._free.popleft()
        page.number = self._begun_pages
        page.on_device.record_stream(stream)
        return page

    def _make_pages(self) -> None:
        with self._lock, torch.inference_mode(False):
            if self._side is None:
                self._free.extend([Page(self._device, self._module) for _ in range(_PAGES)])
                self._side = self._module.Stream(self._device)

    def _settle(self, owners: list[Owner]) -> None:
        while self._sent and self._sent[0].arrived.query():
            page = self._sent[0]
            for late, value in zip(page.late, page.on_host[: len(page.late)].tolist(), strict=True):
                owners.append(late.settle(value))
            page.late.clear()
            with self._lock:
                self._free.append(self._sent.popleft())
            self._patient = True

    def _send(self) -> bool:
        """Send full pages, and the others when none is under way: these would not arrive before it."""
        with self._lock:
            if self._keeping:  # of this thread, which a signal handler has interrupted
                return False
            pages = list(self._full)
            self._full.clear()
            if not pages and not self._sent:
                pages = list(self._open.items())
                self._open.clear()
            self._sent.extend(page for _, page in pages)
        for stream, page in pages:
            page.written.record(stream)
            self._side.wait_event(page.written)
            with self._module.stream(self._side):
                used = slice(len(page.late))
                page.on_host[used].copy_(page.on_device[used], non_blocking=True)
                page.on_device.record_stream(self._side)
                page.arrived.record(self._side)
        return True

    def _unsettled(self) -> list[Page]:
        with self._lock:
            return [*self._sent, *(page for _, page in self._full), *self._open.values()]

    def _abandon(self, owners: list[Owner], reason: str) -> None:
        """Settle all that is to come as lost. The pages are not used again: a copy may still go on."""
        with self._lock:
            lost = [late for page in self._unsettled() for late in page.late]
            for each in (self._sent, self._full, self._open):
                each.clear()
        if lost:
            self._lost(len(lost), reason)
        owners.extend(late.settle(None) for late in lost)


def log(owners: list[Owner]) -> None:
    """Have each of them, once, log what is complete; all do, and then the first exception propagates."""
    _each(lambda owner: owner._log_held(), list(dict.fromkeys(owners)))
