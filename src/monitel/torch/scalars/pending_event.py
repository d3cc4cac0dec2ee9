"""Events with numbers that are still on a device."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, NamedTuple

from monitel.handlers import log_event
from monitel.process.failures import call_each
from monitel.stats.pending import lock, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel.event import Event
    from monitel.logged_numbers import LoggedNumbers


class PendingEvent:
    """Holds an event until its last number has arrived, then logs it as if it had been logged immediately.

    The event keeps its timestamp and step. Handlers run in a copy of the context in which the event was created, so an
    exporter finds the OpenTelemetry span that was current then. The monitel range of that time has ended.

    Args:
        event: The event, with all details that are known already.
        keys: The keys of the details that are pending. Lost details are left out.
    """

    def __init__(self, event: Event, keys: Iterable[str]) -> None:
        self._event: Event | None = event
        self._context = copy_context()
        self._missing: set[object] = {*keys}  # keys, and earlier events with a number of the same name
        self._names: tuple[str, ...] = ()  # of numbers, for which later events wait
        self._next: list[PendingEvent] = []  # these events
        self._optional = False  # not logged without numbers

    @classmethod
    def of_numbers(cls, event: LoggedNumbers, keys: Iterable[str]) -> PendingEvent:
        """Hold the numbers that are pending, and those behind a pending number of their name; leave the others.

        The numbers of one name are therefore logged in the order of the calls.
        """
        with lock():
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
        with lock():
            if key in self._missing and self._event is not None:
                if value is not None:
                    self._event.data[key] = value
                self._missing.remove(key)  # last: another thread may log the event as soon as nothing is missing

    def _log_resolved(self) -> None:
        """Log the event if it is complete, and those that have waited for it. Logs each at most once."""
        found = [self]
        call_each(lambda each: each._log(found), found)

    def _log(self, found: list[PendingEvent]) -> None:
        """Log the event if it is complete, and append those that have waited for it."""
        with lock():  # of several threads one logs
            if self._missing or self._event is None:
                return
            event, self._event = self._event, None
        try:
            if event.data or not self._optional:
                self._context.run(log_event, event)
        finally:
            with lock():
                for name in self._names:
                    if waiting.get(name) is self:
                        del waiting[name]
                for each in self._next:
                    each._missing.discard(self)
            found += self._next


class PendingDetail(NamedTuple):
    """One pending detail of an event.

    Attributes:
        event: The event.
        key: The key of the detail.
        kind: Converts the number from a float to the type that the tensor's ``item()`` returns. Integers are exact up
            to 2**53.
    """

    event: PendingEvent
    key: str
    kind: Callable[[float], float]

    def resolve(self, value: float | None) -> PendingEvent:
        """Set the number, None if it is lost, and return the event. The caller then calls its ``_log_resolved()``."""
        self.event.resolve(self.key, None if value is None else self.kind(value))
        return self.event
