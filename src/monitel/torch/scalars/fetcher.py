"""The devices whose numbers nobody waits for, and the thread that fetches them."""

from __future__ import annotations

import logging
import time
from threading import Event, Lock, RLock, Thread, current_thread
from typing import Any

import torch

from monitel.aggregation import COUNT
from monitel.torch._compat import plainness
from monitel.torch.captures import Captures
from monitel.torch.own_stat import OwnStat
from monitel.torch.ring import Ring

_log = logging.getLogger("monitel.torch")
_SECONDS = 1.0  # how often the thread looks
_SOON_S = 0.001  # the same while somebody waits, or a ring fills
_PATIENCE_S = 2.0  # for how long a flush waits
_NEEDED = ("Event", "Stream", "current_stream", "stream")
_REASONS = {
    "capture": "they were added while a graph was captured; add the graph's output after replay()",
    "full": "the device is far behind",
    "failed": "the device has failed",
    "silent": "the device has not answered for minutes",
    "late": "the device had not come to them at the end",
}

#: Rings of the process that this one was forked from: to free what CUDA uses would abort.
_parents: list[dict[torch.device, Ring | None]] = []


class Devices:
    """A ring for each device, and the thread, made when the first number comes.

    Stat: ``training.tensors.lost`` (COUNT), from the first loss on. Each reason is logged once.

    Args:
        window_size: Of this Stat, seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._window_size = window_size
        self._captures = Captures()
        self._is_plain = plainness()
        self._lost: OwnStat | None = None
        self._said: set[str] = set()
        self._begin()

    def forget(self) -> None:
        """Drop all rings, in a forked child: what is in them, the parent fetches."""
        _parents.append(self._rings)
        self._captures.forget()
        self._begin()

    def _begin(self) -> None:
        self._rings: dict[torch.device, Ring | None] = {}
        self._lock = RLock()
        self._turning = Lock()
        self._thread: Thread | None = None
        self._due = Event()
        self._over = False
        self._soon_until = 0.0
        self._patient = True

    def open(self) -> None:
        """Be told of captures."""
        self._captures.install()

    def close(self) -> None:
        """Wait for the rest, as a flush does; what does not come is lost."""
        self.fetch()
        self._over = True
        self._due.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_PATIENCE_S)
        for ring in self._each():
            ring.give_up()
        self._rings = {}
        self._captures.remove()
        if self._lost is not None:
            self._lost.flush()

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
        """Whether a graph is captured here, into which nothing must be put; the tensor is counted as lost."""
        capturing = ring.capturing()
        if capturing:
            self.lose(1, "capture")
        return capturing

    def fetch(self) -> None:
        """Wait for what was put so far, for a bounded time; not while a graph is captured.

        Where that was not enough, nobody waits again before a device has answered.
        """
        goals = [(ring, ring.begun) for ring in self._each()]
        deadline = time.monotonic() + (_PATIENCE_S if self._patient else 0.0)
        pause = Event()
        while any(ring.holds(begun) for ring, begun in goals):
            if self._captures.running:  # nothing comes before it ends
                return
            if time.monotonic() >= deadline:
                self._patient = False
                return
            self.hurry()
            pause.wait(_SOON_S)

    def hurry(self) -> None:
        """Have the thread look at once, and often for a while."""
        self._soon_until = time.monotonic() + _SECONDS
        self._due.set()

    def lose(self, numbers: int, reason: str, details: object = None) -> None:
        """Count numbers that are lost."""
        if reason not in self._said:
            self._said.add(reason)
            why = _REASONS[reason] if details is None else f"{_REASONS[reason]}: {details}"
            _log.warning("values of tensors are lost: %s; training.tensors.lost counts them", why)
        with self._lock:
            if self._lost is None:
                self._lost = OwnStat(
                    "training.tensors.lost",
                    [COUNT],
                    self._window_size,
                    unit="{tensor}",
                    description="Tensors whose values were lost",
                    monotonic=True,
                )
        for _ in range(numbers):
            self._lost.add(1.0)

    def turn(self) -> bool:
        """Fetch what there is, once; tells whether anything is still to come."""
        rings = self._each()
        with self._turning:
            for ring in rings:
                try:
                    self._patient = ring.turn() or self._patient
                except Exception:  # of a handler
                    if "handler" not in self._said:
                        self._said.add("handler")
                        _log.warning("the thread of monitel.torch goes on after a failure", exc_info=True)
        return any(ring.holds(ring.begun) for ring in rings)

    def _run(self) -> None:
        coming = False
        while not self._over:
            soon = coming and time.monotonic() < self._soon_until
            self._due.wait(_SOON_S if soon else _SECONDS)
            self._due.clear()
            coming = self.turn()

    def _made(self, device: torch.device) -> Ring | None:
        """A ring for a device that was not seen before; no memory of it is taken yet."""
        made = None
        if device.type not in {"cpu", "meta"}:
            module: Any = torch.get_device_module(device)
            if all(hasattr(module, name) for name in _NEEDED):
                made = Ring(device, self._captures, self.hurry, self.lose)
        with self._lock:
            if made is not None and self._thread is None:
                thread = Thread(target=self._run, name="monitel-torch-devices", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # Python ends, and starts no thread any more
                    return None
                self._thread = thread
            return self._rings.setdefault(device, made)

    def _each(self) -> list[Ring]:
        return [ring for ring in list(self._rings.values()) if ring is not None]
