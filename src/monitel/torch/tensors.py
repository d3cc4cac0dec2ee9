"""Tensors as samples of Stats and as details of events, recorded without a wait for their device."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monitel.event import Event
from monitel.handlers import Log, log_event, set_details_hook
from monitel.logged_numbers import LoggedNumbers
from monitel.process.failures import call_each, pass_on
from monitel.stats import pending
from monitel.stats._window import set_value_hook
from monitel.stats.pending import waiting
from monitel.stats.stat import Stat
from monitel.torch.devices import Fetcher, StagedNumbers
from monitel.torch.hooks import Source, never_compile, untraced

_log = logging.getLogger("monitel.torch")


class PendingEvent:
    """Holds an event until its last number has arrived, then logs it in a copy of the context of its creation."""

    def __init__(self, event: Event, keys: Iterable[str]) -> None:
        self._event: Event | None = event
        self._context = copy_context()
        self._missing: set[object] = {*keys}  # keys, and earlier events with a number of the same name
        self._names: tuple[str, ...] = ()  # of numbers, for which later events wait
        self._next: list[PendingEvent] = []  # these events
        self._optional = False  # not logged without numbers

    @classmethod
    def of_numbers(cls, event: LoggedNumbers, keys: Iterable[str]) -> PendingEvent:
        """Hold the numbers that are pending, and those behind a pending number of their name, which stay in order."""
        with pending.lock:
            behind = {name: event.data.pop(name) for name in waiting.keys() & event.data.keys()}
            held = cls(event._later(behind), keys)
            held._optional, held._names = bool(event.data), (*keys, *behind)
            for name in held._names:
                if (earlier := waiting.get(name)) is not None:
                    held._missing.add(earlier)
                    earlier._next.append(held)
                waiting[name] = held
        return held

    def resolve(self, key: str, value: float | None) -> None:
        """Set a pending detail; None drops it, because its value is lost. Idempotent."""
        with pending.lock:
            if key in self._missing and self._event is not None:
                if value is not None:
                    self._event.data[key] = value
                self._missing.remove(key)  # last: another thread may log the event as soon as nothing is missing

    def _log_resolved(self) -> None:
        """Log the event if it is complete, and those that have waited for it."""
        found = [self]
        call_each(lambda each: each._log(found), found)

    def _log(self, found: list[PendingEvent]) -> None:
        with pending.lock:  # of several threads one logs
            if self._missing or self._event is None:
                return
            event, self._event = self._event, None
        try:
            if event.data or not self._optional:
                self._context.run(log_event, event)
        finally:
            with pending.lock:
                for name in self._names:
                    if waiting.get(name) is self:
                        del waiting[name]
                for each in self._next:
                    each._missing.discard(self)
            found += self._next


class PendingDetail(NamedTuple):
    """One pending detail of an event."""

    event: PendingEvent
    key: str
    kind: Callable[[float], float]  # to the type of the tensor's item(); integers are exact up to 2**53

    def resolve(self, value: float | None) -> PendingEvent:
        self.event.resolve(self.key, None if value is None else self.kind(value))
        return self.event


class Tensors(Source):
    """Lets ``Stat.add`` and ``emit`` take tensors of one element without waiting for their device.

    A number on the CPU is read immediately. While torch.export runs a model without numbers, nothing is added. In code
    that torch.compile compiles ``add`` runs between two graphs, as functions in C do.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self.needs = (fetcher,)
        self._fetcher = fetcher

    def install(self) -> None:
        for hook in (self._to_float, self._to_details):  # called by compiled code after a graph break
            never_compile(hook)
        if isinstance(Stat.add, FunctionType):  # else the compiler would trace the window in Python up to its clock
            never_compile(untraced(Stat.add))
        self._value_hook: Callable[[Any, Any], float | None] = set_value_hook(self._to_float)  # for other values
        set_details_hook(self._to_details)

    def remove(self) -> None:
        set_value_hook(self._value_hook)
        set_details_hook(None)

    end = remove

    def _to_float(self, stat: Stat, value: Any) -> float | None:
        if not _is_tensor(type(value)):
            return self._value_hook(stat, value)
        _refuse_dtensor("add()", value)
        staged = self._fetcher.queue_of(value)
        if staged is None:
            return None if torch.compiler.is_exporting() else self._value_hook(stat, value.detach())
        stat._add_pending(partial(staged.put, value), self._fetcher.wait)
        return None

    def _to_details(
        self, given: dict[str, Any], left_out: Callable[[object, object], object]
    ) -> tuple[dict[str, Any], Log]:
        details: dict[str, Any] = {}
        pending: dict[str, tuple[StagedNumbers, Tensor]] = {}
        for key, value in given.items():
            details[key] = value
            if not _is_tensor(type(value)):
                continue
            try:
                if value.numel() != 1:
                    continue  # it is left out later
                _refuse_dtensor("emit()", value)
                if (staged := self._fetcher.queue_of(value)) is None:
                    details[key] = value.item()
                    continue
                pending[key] = staged, value
            except Exception:
                pass_on()
                left_out(key, value)
            del details[key]
        return details, partial(_hold, pending) if pending or waiting else log_event


def _is_tensor(kind: type) -> bool:
    """Return True for the type of tensors. isinstance() would raise for a weak proxy whose object is gone."""
    return kind is Tensor or issubclass(kind, Tensor)


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
