"""Tensors as samples of Stats and as details of events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monitel.handlers import log_event, set_details_hook
from monitel.logged_numbers import LoggedNumbers
from monitel.stats._window import set_value_hook
from monitel.stats.pending import waiting
from monitel.torch.hooks import Source, never_compile
from monitel.torch.scalars.compiled_adds import CompiledAdds
from monitel.torch.scalars.pending_event import PendingDetail, PendingEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.event import Event
    from monitel.handlers import DetailsHook, Log
    from monitel.stats.stat import Stat
    from monitel.torch.scalars.fetcher import Fetcher
    from monitel.torch.scalars.staged_numbers import StagedNumbers


class Tensors(Source):
    """Lets ``Stat.add`` and ``emit`` take tensors of one element without waiting for their device.

    A number on the CPU is read immediately, without torch's warning for tensors that require a gradient. A number on a
    device is copied there and fetched later (:class:`monitel.torch.scalars.staged_numbers.StagedNumbers`). Its sample
    counts immediately; its window, or the event, is logged once the number has arrived. Compiled code adds samples as
    :class:`monitel.torch.scalars.compiled_adds.CompiledAdds` describes.

    While torch.export runs a model with tensors that hold no numbers, nothing is added.

    A DTensor raises TypeError: reading one is a collective operation, and a rank that adds alone would wait forever.

    Args:
        fetcher: Fetches numbers from devices.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self.needs = (fetcher, CompiledAdds())
        self._fetcher = fetcher

    def install(self) -> None:
        """Set the hooks of ``Stat.add`` and ``emit``. The previous hooks run for all other values."""
        self._on = True
        for hook in (self._to_float, self._to_details):  # called by compiled code after a graph break
            never_compile(hook)
        self._value_hook: Callable[[Any, Any], float | None] = set_value_hook(self._to_float)
        self._details_hook: DetailsHook = set_details_hook(self._to_details)

    def remove(self) -> None:
        """Restore the previous hooks. Hooks that somebody else has set since stay; ours then only pass calls on."""
        self._on = False
        if (current := set_value_hook(self._value_hook)) != self._to_float:
            set_value_hook(current)
        if (others := set_details_hook(self._details_hook)) != self._to_details:
            set_details_hook(others)

    end = remove

    def _to_float(self, stat: Stat, value: object) -> float | None:
        if not self._on or not isinstance(value, Tensor):
            return self._value_hook(stat, value)
        _refuse_dtensor("add()", value)
        staged = self._fetcher.queue_of(value)
        if staged is None:
            return None if torch.compiler.is_exporting() else self._value_hook(stat, value.detach())
        if not self._fetcher.lost_to_capture(staged):
            stat._add_pending(partial(staged.put, value), self._fetcher.wait)
        return None

    def _to_details(self, data: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[Mapping[str, Any], Log]:
        given, log = self._details_hook(data, attributes)
        if not self._on or not isinstance(given, Mapping):
            return given, log
        details, pending = dict(given), {}
        for key, value in given.items():
            if isinstance(value, Tensor) and value.numel() == 1:  # Event refuses other tensors, with a message
                _refuse_dtensor("emit()", value)
                if (staged := self._fetcher.queue_of(value)) is None:
                    details[key] = value.item()
                else:
                    del details[key]
                    if not self._fetcher.lost_to_capture(staged):
                        pending[key] = staged, value
        return details, partial(_hold, pending) if pending or waiting else log


def _hold(pending: dict[str, tuple[StagedNumbers, Tensor]], event: Event) -> None:
    """Log an event when its numbers have arrived, and the other numbers of a ``log()`` call now."""
    numbers = event if isinstance(event, LoggedNumbers) else None
    held = PendingEvent(event, pending) if numbers is None else PendingEvent.of_numbers(numbers, pending)
    missing = dict(pending)
    try:
        while missing:
            key, (staged, value) = next(iter(missing.items()))
            kind = bool if value.dtype == torch.bool else float if value.is_floating_point() else int
            staged.put(value, PendingDetail(held, key, kind))
            del missing[key]
    finally:
        for key in missing:  # an exception: they are lost
            held.resolve(key, None)
        try:
            if numbers is not None and numbers.data:
                log_event(numbers)
        finally:
            held._log_resolved()  # if all numbers are lost already


def _refuse_dtensor(call: str, value: Tensor) -> None:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(value, distributed.DTensor):
        raise TypeError(
            f"{call} does not take a DTensor, because reading its value is a collective operation: "
            "pass loss.to_local() for the part of this rank, or call loss.full_tensor() on all ranks"
        )
