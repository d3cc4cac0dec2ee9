"""The thread that fetches numbers from devices."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from monitel.aggregation import COUNT
from monitel.os_threads import Event, Lock, RLock, Thread, current_thread, start_thread
from monitel.torch._compat import plain_tensor_check
from monitel.torch.guarded_stat import GuardedStat
from monitel.torch.scalars.graph_capture import CaptureGuard
from monitel.torch.scalars.staging_ring import StagingRing

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.scalars.staging_ring import Pending

_log = logging.getLogger("monitel.torch")
_POLL_S = 1.0
_FULL_PAGE_POLL_S = 0.02  # after a page was full: each poll takes the GIL and calls the device, beside the training
_WAITING_POLL_S = 0.001  # while a caller waits
_WAIT_S = 2.0  # how long a flush waits for pending numbers
_REQUIRED = ("Event", "Stream", "current_stream", "device", "stream")  # names in the module of a device
_REASONS = {
    "capture": "they were added during a graph capture; add the graph's output after replay() instead",
    "full": "the device is too far behind",
    "failed": "the device failed",
    "timeout": "the device has not delivered them for 5 minutes",
    "exit": "the device had not delivered them when instrumentation ended",
}

#: Rings of the parent process, in a forked child. They are never freed: freeing memory that CUDA uses would abort.
_parent_rings: list[list[Ring]] = []

_Ring = TypeVar("_Ring", bound="Ring")


class Ring(Protocol):
    """Pending numbers that the thread delivers: a :class:`StagingRing`, for example.

    Attributes:
        opened: Counts what becomes pending, in its order.
    """

    opened: int

    def advance(self) -> bool:
        """Deliver what has arrived; return whether anything has. For a single thread."""

    def has_pending(self, up_to: int) -> bool:
        """Return whether any of the first ``up_to`` is pending."""

    def abandon(self) -> None:
        """Give up all that is pending as lost, with the reason "exit"."""


class Fetcher:
    """The staging rings, one per device, and the daemon thread that serves them. Both are created on first use.

    Stat: ``training.tensors.lost`` (COUNT), which exists from the first loss on. Each reason is logged once.

    Args:
        window_size: Window size of that Stat in seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._window_size = window_size
        self._captures = CaptureGuard()
        self._is_plain = plain_tensor_check()
        self._lost: GuardedStat | None = None
        self._warned: set[str] = set()
        self._users = 0
        self._start_empty()

    def reset(self) -> None:
        """Drop all rings. For a forked child: the parent fetches the numbers in them."""
        _parent_rings.append(self.rings())
        self._captures.reset()
        self._start_empty()

    def _start_empty(self) -> None:
        self._rings: dict[torch.device, StagingRing | None] = {}
        self._added: list[Ring] = []
        self._lock = RLock()
        self._advancing = Lock()
        self._thread: Thread | None = None
        self._due = Event()
        self._closed = False
        self._fast_until = 0.0
        self._responsive = True  # False after wait() has timed out, until a device delivers again

    def open(self) -> None:
        """Start to track graph captures. Each user calls it once, and close() at its end."""
        if not self._users:
            self._captures.install()
        self._users += 1

    def close(self) -> None:
        """Wait for pending numbers as a flush does. After the last user, give up the rest, and end the thread."""
        self.wait()
        self._users -= 1
        if self._users > 0:
            return
        self._closed = True
        self._due.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_WAIT_S)
        for ring in self.rings():
            ring.abandon()
        self._rings, self._added = {}, []
        self._captures.remove()
        if self._lost is not None:
            self._lost.flush()

    def read(self, tensor: torch.Tensor, pending: Pending) -> None:
        """Resolve ``pending`` with the number of a tensor that torch provides. Never raises.

        A number on a device is resolved when it arrives, others now. None stands for a number that cannot be read: in a
        graph capture, where the device executes nothing, or of a tensor that does not hold its number itself.
        """
        value = None
        try:
            ring = self.ring(tensor)
            if ring is None:
                value = tensor.item() if self._is_plain(tensor) else None
            elif not ring.is_capturing():
                ring.put(tensor, pending)
                return
        except Exception as error:
            self.count_lost(1, "failed", error)
        pending.resolve(value)

    def ring(self, tensor: torch.Tensor) -> StagingRing | None:
        """Return the ring for a tensor, or None if the caller must read its value synchronously.

        The latter applies on the CPU, on a device without streams, to a tensor of several elements or of complex
        numbers, and to a tensor that does not hold its number itself.
        """
        device = tensor.device
        try:
            ring = self._rings[device]
        except KeyError:
            ring = self._create_ring(device)
        if ring is None or tensor.numel() != 1 or tensor.is_complex() or not self._is_plain(tensor):
            return None
        return ring

    def rings(self) -> list[Ring]:
        """Return the rings of all devices that have one, and what was added."""
        return [*(ring for ring in list(self._rings.values()) if ring is not None), *self._added]

    def serve(self, create: Callable[[CaptureGuard, Callable[..., None]], _Ring]) -> _Ring:
        """Create something that is served like a ring: called with the guard of captures and :meth:`count_lost`."""
        created = create(self._captures, self.count_lost)
        with self._lock:
            self._added.append(created)
            self._start()
        return created

    def lost_to_capture(self, ring: StagingRing) -> bool:
        """Return whether the current stream is being captured, and if so count one lost tensor.

        Nothing may be put then: the copy would become part of the graph.
        """
        capturing = ring.is_capturing()
        if capturing:
            self.count_lost(1, "capture")
        return capturing

    def wait(self) -> None:
        """Wait at most 2 s until all numbers that were put so far have arrived. Returns at once during a graph capture.

        After a timeout, no call waits again until a device has delivered a number.
        """
        goals = [(ring, ring.opened) for ring in self.rings()]
        deadline = time.monotonic() + (_WAIT_S if self._responsive else 0.0)
        pause = Event()
        while any(ring.has_pending(opened) for ring, opened in goals):
            if self._captures.is_capturing:  # nothing arrives before it ends
                return
            if time.monotonic() >= deadline:
                self._responsive = False
                return
            self._due.set()
            pause.wait(_WAITING_POLL_S)

    def wake(self) -> None:
        """Have the thread poll now, and frequently for a second."""
        self._fast_until = time.monotonic() + _POLL_S
        self._due.set()

    def count_lost(self, numbers: int, reason: str, details: object = None) -> None:
        """Count lost numbers, and log the first loss for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            why = _REASONS[reason] if details is None else f"{_REASONS[reason]}: {details}"
            _log.warning("tensor values are lost: %s (counted in training.tensors.lost)", why)
        with self._lock:
            if self._lost is None:
                self._lost = GuardedStat(
                    "training.tensors.lost",
                    [COUNT],
                    self._window_size,
                    unit="{tensor}",
                    description="Tensors whose values were lost",
                    monotonic=True,
                )
        for _ in range(numbers):
            self._lost.add(1.0)

    def advance(self) -> bool:
        """Advance every ring once; return whether any numbers are still pending."""
        rings = self.rings()
        with self._advancing:
            for ring in rings:
                try:
                    self._responsive = ring.advance() or self._responsive
                except Exception:  # raised by an event handler
                    if "handler" not in self._warned:
                        self._warned.add("handler")
                        _log.warning("an event handler raised in the thread that fetches tensors", exc_info=True)
        return any(ring.has_pending(ring.opened) for ring in rings)

    def _run(self) -> None:
        pending = False
        while not self._closed:
            fast = pending and time.monotonic() < self._fast_until
            self._due.wait(_FULL_PAGE_POLL_S if fast else _POLL_S)
            self._due.clear()
            pending = self.advance()

    def _create_ring(self, device: torch.device) -> StagingRing | None:
        """Create the ring of a device, which allocates no device memory yet; None if the device cannot have one."""
        created = None
        if device.type not in {"cpu", "meta"}:
            module: Any = torch.get_device_module(device)
            if all(hasattr(module, name) for name in _REQUIRED):
                created = StagingRing(device, self._captures, self.wake, self.count_lost)
        with self._lock:
            if created is not None and not self._start():
                return None
            return self._rings.setdefault(device, created)

    def _start(self) -> bool:
        """Start the thread, unless it runs; return False if the interpreter shuts down and starts no more threads."""
        if self._thread is None:
            self._thread = start_thread(self._run, "monitel-torch-devices")
        return self._thread is not None
