"""Numbers of tensors, staged on their device until they are copied to the host together."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from monitel.torch.scalars.device_queue import DeviceQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monitel.torch.scalars.device_queue import CaptureGuard, Owner, Pending

ROOM = 8192  #: Numbers of a device that may be pending; each takes 512 bytes of its memory.
_MANY = 512  # staged numbers that are fetched soon


class _Batch:
    """Numbers that are fetched together: staged, then copied to the host. They keep their memory until they arrive."""

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, Pending]] = []  # one element each, on the device
        self.streams: dict[Any, None] = {}  # on which the numbers are computed
        self.sent = math.inf  # monotonic seconds
        self.on_host: Any = None
        self.arrived: Any = None  # event


class StagedNumbers(DeviceQueue):
    """Copies numbers on their device when they are put, and fetches all of them by one copy.

    ``put()`` copies a number on the current stream, so later changes to its tensor have no effect. At a poll all
    numbers staged so far are joined and copied into pinned memory of the host on a separate stream, if no earlier copy
    is under way, and read at the first poll after the copy is complete.

    Args:
        device: The device of the numbers.
        captures: As for :class:`DeviceQueue`.
        lost: As for :class:`DeviceQueue`.
        wake: Called when many numbers are staged.
    """

    def __init__(
        self, device: torch.device, captures: CaptureGuard, lost: Callable[..., None], wake: Callable[[], None]
    ) -> None:
        super().__init__(captures, lost)
        self._device = device
        self._module = torch.get_device_module(device)
        self._is_capturing = getattr(self._module, "is_current_stream_capturing", None)
        self._wake = wake
        self._copying: Any = None  # stream
        self._staged = _Batch()
        self._sent = _Batch()  # being copied, or empty

    @property
    def opened(self) -> int:
        """Number of numbers that were put so far."""
        with self._lock:
            return self._arrived + len(self._sent.entries) + len(self._staged.entries)

    def is_capturing(self) -> bool:
        """Return whether operations on the current stream are recorded into a graph instead of executed."""
        return self._is_capturing is not None and self._is_capturing()

    def put(self, number: Tensor, pending: Pending) -> None:
        """Stage a tensor of one element for ``pending``: one launch on the current stream, without waiting.

        If too many numbers are pending, because the device is too far behind, the number is lost.
        """
        loss: tuple[object, ...] = ()
        try:
            if len(self._sent.entries) + len(self._staged.entries) >= ROOM:
                loss = ("full",)
            else:
                stream = self._module.current_stream(self._device)
                copy = number.detach().reshape(1).to(torch.float64, non_blocking=True, copy=True)
                number.record_stream(stream)  # keeps its memory from being reused before the copy
        except Exception as error:
            loss = "failed", error
        except BaseException:
            pending.resolve(None)
            raise
        if loss:
            pending.resolve(None)
            self._lost(1, *loss)
            return
        with self._lock:
            self._staged.streams[stream] = None
            self._staged.entries.append((copy, pending))  # at once: a signal handler may add a sample, too
        if len(self._staged.entries) >= _MANY:
            self._wake()

    def _deliver(self, owners: list[Owner]) -> None:
        """Read the numbers that have arrived, and start to copy those put so far."""
        sent = self._sent
        if sent.entries:
            if not sent.arrived.query():
                return
            values = sent.on_host.tolist()
            owners += [pending.resolve(value) for (_, pending), value in zip(sent.entries, values, strict=True)]
        with self._lock:
            self._arrived += len(sent.entries)
            self._sent, self._staged = self._staged, _Batch()
        if self._sent.entries:
            self._send(self._sent)

    def _send(self, batch: _Batch) -> None:
        batch.sent = time.monotonic()
        module, numbers = self._module, [number for number, _ in batch.entries]
        if self._copying is None:
            self._copying = module.Stream(self._device)
        for stream in batch.streams:
            written = module.Event()
            written.record(stream)
            self._copying.wait_event(written)
        with module.stream(self._copying), torch.inference_mode(False):
            batch.on_host = _pinned(len(numbers))
            batch.on_host.copy_(torch.cat(numbers), non_blocking=True)
            batch.arrived = module.Event()
            batch.arrived.record(self._copying)

    def _oldest(self) -> float:
        return self._sent.sent

    def _take(self) -> tuple[object, Sequence[Pending]]:
        with self._lock:
            batches = self._sent, self._staged
            self._sent, self._staged = _Batch(), _Batch()
            pending = [each for batch in batches for _, each in batch.entries]
            self._arrived += len(pending)
        return batches, pending


def _pinned(numbers: int) -> Tensor:
    try:
        return torch.empty(numbers, dtype=torch.float64, device="cpu", pin_memory=True)
    except RuntimeError:  # no pinned memory: the copy, and so the thread that fetches, waits for the device
        return torch.empty(numbers, dtype=torch.float64, device="cpu")
