"""Where a device keeps numbers until they are fetched, so that nobody waits for it.

Any thread may :meth:`~Ring.put`. One thread, that of :class:`monitel.torch.devices.Devices`, does the rest: it is the
only one that asks the device for anything.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum, auto
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monitel.registry import _each

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monitel.torch.captures import Captures

_PAGES = 16
_SLOTS = 512  # of a page: all of them are 64 KiB of the device, and as much pinned memory
_HOPE_S = 300.0  # for how long a page is waited for

_left_alone: list[Page] = []  # the device may still use them; and to free what it has failed with aborts the process


class Owner(Protocol):
    """A Stat, or an event that is held."""

    def _log_held(self) -> None:
        """Log what is complete."""


class Late(Protocol):
    """What wants a number."""

    def settle(self, value: float | None) -> Owner:
        """Take it, or None where it is lost; give who is to be told."""


class State(Enum):
    """How far a page is."""

    OPEN = auto()
    CLOSED = auto()  # full, or about to be sent
    SENT = auto()
    ARRIVED = auto()


class Page:
    """Numbers that are fetched together: on the device, and then in the host's memory."""

    def __init__(self, on_device: Tensor, on_host: Tensor, module: Any) -> None:
        self.on_device, self.on_host = on_device, on_host
        self.written, self.arrived = module.Event(), module.Event()
        self.late: list[Late | None] = []  # None: nobody, for nothing was written

    def begin(self, stream: Any, number: int) -> None:
        """Be used once more."""
        self.state = State.OPEN
        self.stream = stream
        self.number = number
        self.begun = time.monotonic()


class Ring:
    """The pages of one device, all made at once, each used over and over.

    A number is copied into a slot on the stream that is current where it is put: what happens to its tensor later does
    not matter. Pages are fetched on a stream of the ring's own, by one copy each, and read when that is done.

    Args:
        device: Whose numbers these are.
        captures: Keeps out of them whatever needs more of the device than a copy.
        wake: Called when a page is full.
        lost: Called with how many numbers are lost, and why: one of a few words, and perhaps details.
    """

    def __init__(
        self, device: torch.device, captures: Captures, wake: Callable[[], None], lost: Callable[..., None]
    ) -> None:
        self.begun = 0  # pages, so far
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._is_capturing = getattr(self._module, "is_current_stream_capturing", None)
        self._captures = captures
        self._wake = wake
        self._lost = lost
        self._lock = RLock()  # of the lists; held while one number is copied, never while the device is waited for
        self._made: Any = None  # the event: the pages' memory is free of what was there before
        self._free: deque[Page] = deque()
        self._used: list[Page] = []
        self._open: dict[Any, Page] = {}  # by stream

    def capturing(self) -> bool:
        """Whether what is done on the current stream goes into a graph instead of being done."""
        return self._is_capturing is not None and self._is_capturing()

    def put(self, number: Tensor, late: Late) -> None:
        """Keep a tensor of one element for ``late``: one launch, on the current stream, and no wait.

        Where no slot is free, because the device is far behind, the number is lost.
        """
        try:
            lost = self._keep(number.detach(), late)
        except Exception as error:
            lost = ("failed", error)
        except BaseException:
            late.settle(None)
            raise
        if lost is not None:
            late.settle(None)
            self._lost(1, *lost)

    def turn(self) -> bool:
        """Settle what has arrived, and have what was put so far copied to the host. For one thread.

        Returns:
            Whether anything has arrived.
        """
        why: tuple[object, ...] = ()
        with self._captures.kept_out() as allowed:
            if allowed and self._made is not None:
                try:
                    self._look()
                    self._send()
                except Exception as error:  # the device has failed, and soon the job will
                    why = "failed", error
        arrived = [page for page in self._used if page.state is State.ARRIVED]
        owners = [owner for page in arrived for owner in self._settled(page)]
        if not why and self._used and time.monotonic() > self._used[0].begun + _HOPE_S:
            why = ("silent",)
        log(owners + self._abandoned(*why) if why else owners)
        return bool(arrived)

    def holds(self, begun: int) -> bool:
        """Whether numbers are still to come of the pages that were the first so many to begin."""
        with self._lock:
            return any(page.number <= begun for page in self._used)

    def give_up(self) -> None:
        """Settle all that is to come as lost."""
        log(self._abandoned("late"))

    def _keep(self, number: Tensor, late: Late) -> tuple[object, ...] | None:
        """Do it, or say why not."""
        if self._made is None and not self._make_pages():
            return ("capture",)
        stream = self._module.current_stream(self._device)
        with self._lock:
            page = self._open.get(stream)
            if page is None:
                if not self._free:
                    return ("full",)
                page = self._begin(stream)
            slot = len(page.late)
            page.late.append(late)  # first: a signal handler that adds takes the next slot
            if full := slot + 1 == _SLOTS:
                del self._open[stream]
                page.state = State.CLOSED
            try:
                page.on_device[slot].copy_(number.reshape(()) if number.dim() else number, non_blocking=True)
                number.record_stream(stream)  # its memory is not used for anything else before that
            except BaseException:
                page.late[slot] = None
                raise
        if full:
            self._wake()
        return None

    def _make_pages(self) -> bool:
        with self._captures.kept_out() as allowed, self._lock, torch.inference_mode(False):
            if allowed and self._made is None:
                shape, kind = (_PAGES, _SLOTS), torch.float64
                on_device, on_host = torch.empty(shape, dtype=kind, device=self._device), _pinned(shape, kind)
                self._side = self._module.Stream(self._device)
                self._free.extend(Page(on_device[n], on_host[n], self._module) for n in range(_PAGES))
                made = self._module.Event()
                made.record(self._module.current_stream(self._device))
                self._made = made
            return allowed

    def _begin(self, stream: Any) -> Page:
        self.begun += 1
        page = self._free.popleft()
        page.begin(stream, self.begun)
        stream.wait_event(self._made)
        self._open[stream] = page
        self._used.append(page)
        return page

    def _look(self) -> None:
        for page in self._used:
            if page.state is State.SENT and page.arrived.query():
                page.state = State.ARRIVED

    def _send(self) -> None:
        """Send full pages, and the others when none is under way: these would not arrive before it."""
        with self._lock:
            states = {page.state for page in self._used}
            if not states & {State.CLOSED, State.SENT}:
                for page in self._open.values():
                    page.state = State.CLOSED
                self._open.clear()
            pages = [page for page in self._used if page.state is State.CLOSED]
        for page in pages:
            page.written.record(page.stream)
            self._side.wait_event(page.written)
            with self._module.stream(self._side):
                used = slice(len(page.late))
                page.on_host[used].copy_(page.on_device[used], non_blocking=True)
                page.arrived.record(self._side)
            page.state = State.SENT

    def _settled(self, page: Page) -> list[Owner]:
        values = page.on_host[: len(page.late)].tolist()
        owners = [late.settle(value) for late, value in zip(page.late, values, strict=True) if late is not None]
        page.late.clear()
        with self._lock:
            self._used.remove(page)
            self._free.append(page)
        return owners

    def _abandoned(self, *why: object) -> list[Owner]:
        with self._lock:
            pages, self._used = self._used, []
            self._open.clear()
        _left_alone.extend(pages)
        owners = [late.settle(None) for page in pages for late in page.late if late is not None]
        if owners:
            self._lost(len(owners), *why)
        return owners


def _pinned(shape: tuple[int, ...], kind: Any) -> Tensor:
    try:
        return torch.empty(shape, dtype=kind, device="cpu", pin_memory=True)
    except RuntimeError:  # there is none: the copy, and so the thread that fetches, waits for the device
        return torch.empty(shape, dtype=kind, device="cpu")


def log(owners: list[Owner]) -> None:
    """Have each of them, once, log what is complete; all do, and then the first exception propagates."""
    _each(lambda owner: owner._log_held(), list(dict.fromkeys(owners)))
