"""An event with numbers that are still on a device."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

from monitel.handlers import log_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel.event import Event


class HeldEvent:
    """Logs an event when its last number has come, as it would have been logged when it was made.

    It keeps its time and its step, and handlers run in a copy of the context, so that an exporter finds OpenTelemetry's
    span; a range of monitel's has ended by then.

    Args:
        event: With all other details.
        keys: Of the details that are to come. Those that are lost are left out.
    """

    def __init__(self, event: Event, keys: Iterable[str]) -> None:
        self._event: Event | None = event
        self._context = copy_context()
        self._missing = set(keys)

    def settle(self, key: str, value: float | None) -> None:
        """Take a number, once, None where it is lost."""
        if key in self._missing and self._event is not None:
            self._missing.remove(key)
            if value is not None:
                self._event.data[key] = value

    def _log_held(self) -> None:
        """Log the event, once, if it is complete."""
        if not self._missing and self._event is not None:
            event, self._event = self._event, None
            self._context.run(log_event, event)


class LateDetail:
    """One of its numbers: ``kind`` makes of the float what the tensor's ``item()`` is, up to 2**53."""

    __slots__ = ("_event", "_key", "_kind")

    def __init__(self, event: HeldEvent, key: str, kind: Callable[[float], float]) -> None:
        self._event = event
        self._key = key
        self._kind = kind

    def settle(self, value: float | None) -> HeldEvent:
        """Take it, or None where it is lost; gives the event, whose ``_log_held()`` is to be called."""
        self._event.settle(self._key, None if value is None else self._kind(value))
        return self._event
