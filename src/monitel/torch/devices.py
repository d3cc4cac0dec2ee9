"""The devices whose numbers nobody waits for."""

from __future__ import annotations

import logging
from threading import RLock

import torch

from monitel.aggregation import COUNT
from monitel.stats import Stat
from monitel.torch._compat import plainness
from monitel.torch.captures import Captures
from monitel.torch.ring import Ring

_log = logging.getLogger("monitel.torch")
_PATIENCE = 5.0  # seconds that a flush waits for each
_NEEDED = ("Event", "Stream", "current_stream", "stream")


class Devices:
    """A ring for each device that can give its numbers later, made when the first comes.

    Stat: ``training.tensors.lost`` (COUNT), from the first loss on. Each reason is logged once.

    Args:
        window_size: Of this Stat, seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._window_size = window_size
        self._captures = Captures()
        self._is_plain = plainness()
        self._lost: Stat | None = None
        self._said: set[str] = set()
        self.forget()

    def open(self) -> None:
        """Be told of captures."""
        self._captures.install()

    def close(self) -> None:
        """Wait for the rest; what does not come is lost."""
        for ring in self._each():
            ring.close(_PATIENCE)
        self.forget()
        self._captures.remove()
        if self._lost is not None:
            self._lost.flush()

    def forget(self) -> None:
        """Drop all rings, in a forked child: what is in them, the parent fetches."""
        self._lock = RLock()
        self._rings: dict[torch.device, Ring | None] = {}

    def ring(self, tensor: torch.Tensor) -> Ring | None:
        """The ring for a tensor of one element; None where its value is to be asked for at once, as ever.

        That is so on the CPU, on a device without streams, and for a tensor that does not hold its number itself.
        """
        device = tensor.device
        try:
            ring = self._rings[device]
        except KeyError:
            ring = self._made(device)
        if ring is None or tensor.numel() != 1 or tensor.is_complex() or not self._is_plain(tensor):
            return None
        return ring

    def skips(self, ring: Ring) -> bool:
        """Whether a CUDA graph is captured here, into which nothing must be put; the tensor is counted as lost."""
        capturing = ring.capturing()
        if capturing:
            self.lose(1, "what is added while a CUDA graph is captured has no value yet; add it after replay()")
        return capturing

    def turn(self) -> None:
        """Fetch what was put so far, and settle what has come, without waiting for it."""
        for ring in self._each():
            ring.turn()

    def fetch(self) -> None:
        """Wait for what was put so far, for a bounded time."""
        for ring in self._each():
            ring.fetch(_PATIENCE)

    def lose(self, numbers: int, reason: str) -> None:
        """Count numbers that are lost."""
        with self._lock:
            if self._lost is None:
                self._lost = Stat(
                    "training.tensors.lost",
                    [COUNT],
                    self._window_size,
                    unit="{tensor}",
                    description="Tensors whose values were lost",
                    monotonic=True,
                )
        for _ in range(numbers):
            self._lost.add(1.0)
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("values of tensors are lost: %s; training.tensors.lost counts them", reason)

    def _made(self, device: torch.device) -> Ring | None:
        """A ring for a device that was not seen before; no memory of it is taken yet."""
        made = None
        if device.type not in {"cpu", "meta"}:
            module = torch.get_device_module(device)
            if all(hasattr(module, name) for name in _NEEDED):
                made = Ring(device, self._captures, self.lose)
        with self._lock:
            return self._rings.setdefault(device, made)

    def _each(self) -> list[Ring]:
        return [ring for ring in list(self._rings.values()) if ring is not None]
