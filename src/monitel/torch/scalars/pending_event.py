"""Events with numbers that are still on a device."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

from monitel.handlers import log_event
from monitel.pending import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel.event import Event


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
        self._missing = set(keys)

    def resolve(self, key: str, value: float | None) -> None:
        """Set a pending detail; None drops it, because its value is lost. Idempotent."""
        with lock():
            if key in self._missing and self._event is not None:
                if value is not None:
                    self._event.data[key] = value
                self._missing.remove(key)  # last: another thread may log the event as soon as nothing is missing

    def _log_resolved(self) -> None:
        """Log the event if it is complete. Logs it at most once."""
        with lock():  # of several threads one logs
            if self._missing or self._event is None:
                return
            event, self._event = self._event, None
        self._context.run(log_event, event)


class PendingDetail:
    """One pending detail of an event.

    Args:
        event: The event.
        key: The key of the detail.
        kind: Converts the number from a float to the type that the tensor's ``item()`` returns. Integers are exact up
            to 2**53.
    """

    __slots__ = ("_event", "_key", "_kind")

    def __init__(self, event: PendingEvent, key: str, kind: Callable[[float], float]) -> None:
        self._event = event
        self._key = key
        self._kind = kind

    def resolve(self, value: float | None) -> PendingEvent:
        """Set the number, None if it is lost, and return the event. The caller then calls its ``_log_resolved()``."""
        self._event.resolve(self._key, None if value is None else self._kind(value))
        return self._event
