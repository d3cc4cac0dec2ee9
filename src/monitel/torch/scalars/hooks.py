"""Tensors as samples, and as details of events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monitel._window import set_value_hook
from monitel.handlers import set_details_hook
from monitel.torch.devices import Devices
from monitel.torch.held_event import HeldEvent, LateDetail

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.event import Event
    from monitel.handlers import DetailsHook, Log
    from monitel.stats import Stat
    from monitel.torch.ring import Ring


class Tensors:
    """Has ``Stat.add`` and ``emit`` take tensors of one element, and never wait for the device that one is on.

    A number on the CPU is read at once, and without torch's warning where it needs a gradient. One on a device is
    copied there, and fetched later (:class:`monitel.torch.ring.Ring`): its sample counts at once, and its window, or
    the event, is logged when the number is there.

    While torch.export runs a model with tensors that have no numbers, nothing is added.

    A DTensor is refused: to read one is a collective operation, in which a rank that adds alone would wait for ever.

    Args:
        window_size: Of the Stat that counts what is lost, seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._devices = Devices(window_size)

    def install(self) -> None:
        """Put the hooks before those that are there."""
        self._on = True
        self._devices.open()
        self._value_hook: Callable[[Any, Any], float | None] = set_value_hook(self._to_float)
        self._details_hook: DetailsHook = set_details_hook(self._to_details)

    def remove(self) -> None:
        """Put those back, and wait for what is to come; where somebody has put others before, ours only pass on."""
        self._on = False
        if (current := set_value_hook(self._value_hook)) != self._to_float:
            set_value_hook(current)
        if (others := set_details_hook(self._details_hook)) != self._to_details:
            set_details_hook(others)
        self._devices.close()

    def forget(self) -> None:
        """In a forked child."""
        self._devices.forget()

    def _to_float(self, stat: Stat, value: object) -> float | None:
        if not self._on or not isinstance(value, Tensor):
            return self._value_hook(stat, value)
        _refuse_dtensor("add()", value)
        ring = self._devices.ring(value)
        if ring is None:
            return None if torch.compiler.is_exporting() else self._value_hook(stat, value.detach())
        if not self._devices.skips(ring):
            stat._add_late(partial(ring.put, value), self._devices.fetch)
        return None

    def _to_details(self, data: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[Mapping[str, Any], Log]:
        given, log = self._details_hook(data, attributes)
        if not self._on or not isinstance(given, Mapping):
            return given, log
        details, late = dict(given), {}
        for key, value in given.items():
            if isinstance(value, Tensor) and value.numel() == 1:  # of others the event itself says what is wrong
                _refuse_dtensor("emit()", value)
                if (ring := self._devices.ring(value)) is None:
                    details[key] = value.item()
                else:
                    del details[key]
                    if not self._devices.skips(ring):
                        late[key] = ring, value
        return details, partial(_hold, late) if late else log


def _hold(late: dict[str, tuple[Ring, Tensor]], event: Event) -> None:
    held = HeldEvent(event, late)
    for key, (ring, value) in late.items():
        kind = bool if value.dtype == torch.bool else float if value.is_floating_point() else int
        ring.put(value, LateDetail(held, key, kind))
    held._log_held()  # where all are lost already


def _refuse_dtensor(call: str, value: Tensor) -> None:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(value, distributed.DTensor):
        raise TypeError(
            f"{call} takes no DTensor, whose value all ranks must ask for together: "
            "loss.to_local() is this rank's part, loss.full_tensor() on all ranks the whole"
        )
