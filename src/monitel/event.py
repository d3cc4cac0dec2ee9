"""Events: a name, a time, data and a severity."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from enum import IntEnum
from time import time_ns as real_time_ns
from typing import Any, TypeVar, cast

from monitel import clock
from monitel.attributes import checked_text, checked_value, plain_copy
from monitel.stats._window import get_step
from monitel.stats.window import Window

_new = object.__new__

_E = TypeVar("_E", bound="Event")

#: The types of a value in an Event's data (torch/monitor/__init__.py has the same name).
data_value_t = TypeVar("data_value_t", str, int, float, bool)

#: The name of the Events that Stats log when a window closes.
STAT_EVENT = "torch.monitor.Stat"


class Severity(IntEnum):
    """The severity of an Event, with OpenTelemetry's numbers (logs data model, SeverityNumber).

    A name in any case is a severity too, as in ``Severity("warning")``.
    """

    TRACE = 1
    DEBUG = 5
    INFO = 9
    WARN = WARNING = 13
    ERROR = 17
    FATAL = CRITICAL = 21

    @classmethod
    def _missing_(cls, value: object) -> Severity | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class Event:
    """Something that happened, to be recorded by handlers.

    Args:
        name: The kind of event, of low cardinality, such as ``"checkpoint.written"``.
        timestamp: Time of the event. A naive datetime is local time, as in torch; an aware one keeps its zone.
        data: Details: str keys, values of str, int (64 bits), float or bool. The mapping is copied.
        severity: A :class:`Severity`, or its name such as ``"warning"``.

    ``==`` compares all four attributes, ``hash`` uses name and timestamp. An Event can be copied and pickled. All four
    attributes can be assigned, with the same checks. Items that are added to ``event.data`` are not checked here;
    exporters check again.

    Raises:
        TypeError: A name that is not a str, a timestamp that is not a datetime, data that is not a mapping, a value
            of another type.
        ValueError: An int beyond 64 bits, or an unknown severity.

    Example:
        >>> from datetime import datetime
        >>> from monitel import Event
        >>> Event("epoch", datetime(2026, 1, 1), {"epoch": 3, "loss": 0.25})
        Event('epoch', datetime.datetime(2026, 1, 1, 0, 0), {'epoch': 3, 'loss': 0.25})
    """

    __slots__ = ("__weakref__", "_data", "_name", "_severity", "_step", "_time_ns", "_timestamp", "_window")

    _data: dict[str, Any] | None  # None until read, if the Event has a window: exporters read the window instead
    _timestamp: dt.datetime | None  # None for the time _time_ns, which exporters read instead

    def __init__(
        self,
        name: str,
        timestamp: dt.datetime,
        data: Mapping[str, str | int | float | bool],
        *,
        severity: Severity | str = Severity.INFO,
    ) -> None:
        self._name = checked_text("Event name", name)
        self._timestamp = _datetime(timestamp)
        self._time_ns = 0
        self._data = _checked_data(data)
        self._severity = checked_severity(severity)
        self._step = get_step()
        self._window: Window | None = None

    @property
    def name(self) -> str:
        """The kind of event."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = checked_text("Event name", name)

    @property
    def timestamp(self) -> dt.datetime:
        """Time of the event."""
        return clock.local_datetime(self._time_ns) if self._timestamp is None else self._timestamp

    @timestamp.setter
    def timestamp(self, timestamp: dt.datetime) -> None:
        self._timestamp = _datetime(timestamp)

    @property
    def data(self) -> dict[str, str | int | float | bool]:
        """Details. The dict belongs to the Event: a change of it changes the Event."""
        if self._data is None:
            window = cast("Window", self._window)
            self._data = {f"{window.name}.{suffix}": value for suffix, value in window.values().items()}
        return self._data

    @data.setter
    def data(self, data: Mapping[str, Any]) -> None:
        self._data = _checked_data(data)

    @property
    def severity(self) -> Severity:
        """The severity."""
        return self._severity

    @severity.setter
    def severity(self, severity: Severity | str) -> None:
        self._severity = checked_severity(severity)

    @property
    def step(self) -> int | None:
        """Training step when the Event was created; for the Event of a window, the step of the window's last sample."""
        return self._step

    @property
    def window(self) -> Window | None:
        """The closed window that a Stat logged with this Event; None for every other Event."""
        return self._window

    def _fields(self) -> tuple[Any, ...]:
        """Return the first fields of a ``LogRecord``: times, severity, name, step, attributes and body."""
        time_ns = self._time_ns if self._timestamp is None else clock.timestamp_ns(self._timestamp)
        data = self.data if self._data is None else self._data
        return time_ns, self._time_ns or real_time_ns(), self._severity._value_, self._name, self._step, data, None

    @classmethod
    def _of(  # noqa: PLR0917, PYI019  faster than by name; typing.Self is 3.11's
        cls: type[_E],
        name: str,
        time_ns: int,
        data: dict[str, Any] | None,
        step: int | None,
        severity: Severity = Severity.INFO,
        window: Window | None = None,
    ) -> _E:
        """Return an Event of checked arguments, without a timestamp."""
        event = _new(cls)
        event._name = name
        event._timestamp = None
        event._time_ns = time_ns
        event._data = data
        event._severity = severity
        event._step = step
        event._window = window
        return event

    @classmethod
    def of_window(cls, window: Window) -> Event:
        """Return the Event that torch's Stat logs: ``<name>.<aggregation>`` for each requested number."""
        return cls._of(STAT_EVENT, clock.time_ns(), None, window.last_step, Severity.INFO, window)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        own, others = ((each._name, each.timestamp, each.data, each._severity) for each in (self, other))
        return own == others

    def __hash__(self) -> int:
        return hash((self._name, self.timestamp))

    def __repr__(self) -> str:
        severity = "" if self._severity is Severity.INFO else f", severity=Severity.{self._severity.name}"
        return f"{type(self).__name__}({self._name!r}, {self.timestamp!r}, {self.data!r}{severity})"


def _checked_data(data: Mapping[str, Any]) -> dict[str, Any]:
    if (copy := plain_copy(data)) is not None:
        return copy
    if not isinstance(data, Mapping) and not (hasattr(data, "items") and hasattr(data, "__getitem__")):
        raise TypeError(f"Event data must be a mapping of names to values, got {type(data).__qualname__}")
    pairs = data.items()
    return {checked_text("key of Event data", key): checked_value(f"Event data {key!r}", each) for key, each in pairs}


def checked_severity(severity: Severity | str) -> Severity:
    """Return a severity, which may be given by its name; raise ValueError for any other value."""
    if type(severity) is Severity:
        return severity
    try:
        return Severity(severity)  # type: ignore[arg-type]  # a name
    except ValueError:
        allowed = ", ".join(f"Severity.{member.name}" for member in Severity)
        raise ValueError(f"severity must be one of {allowed}, got {severity!r}") from None


def _datetime(timestamp: object) -> dt.datetime:
    if type(timestamp) is dt.datetime:
        return timestamp
    if isinstance(timestamp, dt.datetime):  # such as pandas.Timestamp: a plain datetime, as in torch
        return dt.datetime.combine(timestamp.date(), timestamp.timetz())
    if isinstance(timestamp, dt.date):
        return dt.datetime.combine(timestamp, dt.time())
    if isinstance(timestamp, dt.time):
        return dt.datetime.combine(dt.date(1970, 1, 1), timestamp)
    given = f"{type(timestamp).__qualname__}: {timestamp!r:.80}"
    raise TypeError(f"Event timestamp must be a datetime such as datetime.now(), got {given}")
