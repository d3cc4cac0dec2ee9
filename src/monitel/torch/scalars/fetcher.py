"""The thread that fetches numbers from devices."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from monitel.process.os_threads import Event, RLock, get_ident
from monitel.process.worker import Worker
from monitel.stats.aggregation import COUNT
from monitel.torch.hooks import Missing, Source, find
from monitel.torch.recording import GuardedStat
from monitel.torch.scalars.device_queue import CaptureGuard, _abandoned
from monitel.torch.scalars.staged_numbers import StagedNumbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.scalars.device_queue import DeviceQueue, Pending

_log = logging.getLogger("monitel.torch")
_POLL_S = 1.0
_FAST_POLL_S = 0.02  # after many numbers: each poll takes the GIL and calls the device, beside the training
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


class Fetcher(Source):
    """The queues of the devices, and the daemon thread that serves them. Both are created on first use.

    Stat: ``training.tensors.lost`` (COUNT), which exists from the first loss on. Each reason is logged once.

    Args:
        window_size: Window size of that Stat in seconds.
    """

    def __init__(self, window_size: float) -> None:
        self.captures = CaptureGuard()
        self.needs = (self.captures,)
        self._window_size = window_size
        self._is_plain = _plain_tensor_check()
        self._lost: GuardedStat | None = None
        self._warned: set[str] = set()
        self._start_empty()

    def reset(self) -> None:
        """Drop all queues. For a forked child: the parent fetches the numbers in them."""
        _abandoned.append(self._queues)
        self._start_empty()

    def _start_empty(self) -> None:
        self._numbers: dict[torch.device, StagedNumbers | None] = {}
        self._queues: list[DeviceQueue] = []
        self._lock = RLock()
        self._worker = Worker("monitel-torch-devices", self._run, first=_POLL_S)
        self._serving = 0  # identity of the thread
        self._fast_until = 0.0
        self._responsive = True  # False after wait() has timed out, until a device delivers again

    def end(self) -> None:
        """Wait for pending numbers as a flush does, give up the rest, and end the thread. Idempotent."""
        self.wait()
        self._worker.stop()
        if self._worker.started:
            with suppress(RuntimeError):  # an event handler has called this, in the thread itself
                self._worker.join(time.monotonic() + _WAIT_S)
        queues, self._queues, self._numbers = self._queues, [], {}
        for queue in queues:
            queue.abandon()
        if self._lost is not None:
            self._lost.flush()

    remove = end

    def read(self, tensor: torch.Tensor, pending: Pending) -> None:
        """Resolve ``pending`` with the number of a tensor that torch provides. Never raises.

        A number on a device is resolved when it arrives, others now. None stands for a number that cannot be read: in a
        graph capture, where the device executes nothing, or of a tensor that does not hold its number itself.
        """
        value = None
        try:
            staged = self.queue_of(tensor)
            if staged is None:
                value = tensor.item() if self._is_plain(tensor) else None
            elif not staged.is_capturing():
                staged.put(tensor, pending)
                return
        except Exception as error:
            self.count_lost(1, "failed", error)
        pending.resolve(value)

    def queue_of(self, tensor: torch.Tensor) -> StagedNumbers | None:
        """Return the queue for a tensor, or None if the caller must read its value synchronously.

        The latter applies on the CPU, on a device without streams, to a tensor of several elements or of complex
        numbers, and to a tensor that does not hold its number itself.
        """
        device = tensor.device
        try:
            staged = self._numbers[device]
        except KeyError:
            staged = self._create(device)
        if staged is None or tensor.numel() != 1 or tensor.is_complex() or not self._is_plain(tensor):
            return None
        return staged

    def serve(self, queue: DeviceQueue) -> bool:
        """Deliver what is put into a queue; return False if the interpreter shuts down and starts no more threads."""
        with self._lock:
            if self._worker.start():
                self._queues = [*self._queues, queue]
                return True
            return False

    def lost_to_capture(self, staged: StagedNumbers) -> bool:
        """Return whether the current stream is being captured, and if so count one lost tensor.

        Nothing may be put then: the copy would become part of the graph.
        """
        capturing = staged.is_capturing()
        if capturing:
            self.count_lost(1, "capture")
        return capturing

    def wait(self) -> None:
        """Wait at most 2 s until all numbers that were put so far have arrived. Returns at once during a graph capture.

        After a timeout, no call waits again until a device has delivered a number.
        """
        if self._serving == get_ident():  # an event handler flushes, in the thread itself
            return
        goals = [(queue, queue.opened) for queue in self._queues]
        deadline = time.monotonic() + (_WAIT_S if self._responsive else 0.0)
        pause = Event()
        while any(queue.has_pending(opened) for queue, opened in goals):
            if self.captures.is_capturing:  # nothing arrives before it ends
                return
            if time.monotonic() >= deadline:
                self._responsive = False
                return
            self._worker.wake()
            pause.wait(_WAITING_POLL_S)

    def wake(self) -> None:
        """Have the thread poll now, and frequently for a second."""
        self._fast_until = time.monotonic() + _POLL_S
        self._worker.wake()

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

    def _run(self) -> float:
        """Advance every queue once; return the seconds until the next time."""
        queues, self._serving = self._queues, get_ident()
        for queue in queues:
            try:
                self._responsive = queue.advance() or self._responsive
            except Exception:  # raised by an event handler
                if "handler" not in self._warned:
                    self._warned.add("handler")
                    _log.warning("an event handler raised in the thread that fetches tensors", exc_info=True)
        fast = time.monotonic() < self._fast_until and any(each.has_pending(each.opened) for each in queues)
        return _FAST_POLL_S if fast else _POLL_S

    def _create(self, device: torch.device) -> StagedNumbers | None:
        """Create the queue of a device, which uses no device memory yet; None if the device cannot have one."""
        with self._lock:
            if device not in self._numbers:
                created = None
                if device.type not in {"cpu", "meta"}:
                    module: Any = torch.get_device_module(device)
                    if all(hasattr(module, name) for name in _REQUIRED):
                        created = StagedNumbers(device, self.captures, self.count_lost, self.wake)
                        if not self.serve(created):
                            return None
                self._numbers[device] = created
            return self._numbers[device]


def _plain_tensor_check() -> Callable[[torch.Tensor], bool]:
    """Return a function that returns whether a tensor holds its numbers itself.

    The numbers of a subclass with ``__torch_dispatch__`` may be anywhere. Within a transform of torch.func, such as
    vmap, one tensor may stand for several, and none of them can be copied to the outside.
    """
    default = torch.Tensor.__torch_dispatch__
    try:
        transform = find("torch._C._functorch", "peek_interpreter_stack")
    except Missing:
        return lambda tensor: type(tensor).__torch_dispatch__ is default
    return lambda tensor: type(tensor).__torch_dispatch__ is default and transform() is None
