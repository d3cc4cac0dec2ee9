"""What happened, when, and with which data."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from monitel import clock
from monitel._window import get_step

if TYPE_CHECKING:
    from monitel.window import Window

#: What a value of an Event's data may be (torch/monitor/__init__.py has the same name).
data_value_t = TypeVar("data_value_t", str, int, float, bool)

#: The name of the Events that Stats log when a window closes.
STAT_EVENT = "torch.monitor.Stat"


class Severity(IntEnum):
    """How grave an Event is, with OpenTelemetry's numbers (logs data model, SeverityNumber)."""

    TRACE = 1
    DEBUG = 5
    INFO = 9
    WARN = 13
    ERROR = 17
    FATAL = 21


class Event:
    """Something that happened, for handlers to record.

    Args:
        name: What happened, a name of low cardinality such as ``"checkpoint.written"``.
        timestamp: When. A naive datetime is local time, as in torch; an aware one keeps its zone.
        data: Details: str keys, values of str, int (64 bits), float or bool. The mapping is copied.
        severity: How grave it is.

    ``==`` and ``hash`` go by value (the hash by name and timestamp); an Event can be copied and pickled. All four
    attributes can be assigned and are checked as here. What is put into ``event.data`` itself stays there
    unchecked: exporters check again.

    Raises:
        TypeError: A name that is no str, a timestamp that is no datetime, data that is no mapping, a value of
            another type.
        ValueError: An int beyond 64 bits.

    Example:
        >>> from datetime import datetime
        >>> from monitel import Event
        >>> Event("epoch", datetime(2026, 1, 1), {"epoch": 3, "loss": 0.25})
        Event('epoch', datetime.datetime(2026, 1, 1, 0, 0), {'epoch': 3, 'loss': 0.25})
    """

    __slots__ = ("__weakref__", "_data", "_name", "_severity", "_step", "_timestamp", "_window")

    _data: dict[str, Any] | None  # of a window: made when it is asked for, for exporters read the window itself

    def __init__(
        self,
        name: str,
        timestamp: dt.datetime,
        data: Mapping[str, str | int | float | bool],
        *,
        severity: Severity = Severity.INFO,
    ) -> None:
        self.name = name
        self.timestamp = timestamp
        self.data = data
        self.severity = severity
        self._step = get_step()
        self._window: Window | None = None

    @property
    def name(self) -> str:
        """What happened."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = text("Event name", name)

    @property
    def timestamp(self) -> dt.datetime:
        """When it happened."""
        return self._timestamp

    @timestamp.setter
    def timestamp(self, timestamp: dt.datetime) -> None:
        self._timestamp = _datetime(timestamp)

    @property
    def data(self) -> dict[str, str | int | float | bool]:
        """Details. The dict is the Event's own: what is put into it stays."""
        if self._data is None:
            self._data = self._of_stat()
        return self._data

    @data.setter
    def data(self, data: Mapping[str, Any]) -> None:
        if not isinstance(data, Mapping) and not (hasattr(data, "items") and hasattr(data, "__getitem__")):
            raise TypeError(f"Event data must be a mapping of names to values, got {type(data).__qualname__}")
        self._data = {
            text("key of Event data", key): scalar(f"Event data {key!r}", value) for key, value in data.items()
        }

    @property
    def severity(self) -> Severity:
        """How grave it is."""
        return self._severity

    @severity.setter
    def severity(self, severity: Severity) -> None:
        try:
            self._severity = Severity(severity)
        except ValueError:
            allowed = ", ".join(f"Severity.{member.name}" for member in Severity)
            raise ValueError(f"severity must be one of {allowed}, got {severity!r}") from None

    @property
    def step(self) -> int | None:
        """The training step at which it was made; of a Stat's, the step of the window's last sample."""
        return self._step

    @property
    def window(self) -> Window | None:
        """The closed window that a Stat logged with this Event; None for every other Event."""
        return self._window

    @classmethod
    def of_window(cls, window: Window) -> Event:
        """The Event that torch's Stat logs: ``<name>.<aggregation>`` for each number that was asked for."""
        event = cls.__new__(cls)
        event._name = STAT_EVENT
        event._timestamp = clock.now()
        event._data = None
        event._severity = Severity.INFO
        event._step = window.last_step
        event._window = window
        return event

    def _of_stat(self) -> dict[str, Any]:
        window = cast("Window", self._window)
        return {f"{window.name}.{suffix}": value for suffix, value in window.values().items()}

    def __getstate__(self) -> tuple[Any, ...]:
        own = getattr(self, "__dict__", None)  # a subclass's
        fold = self._timestamp.fold  # which datetime itself leaves out before protocol 4
        return self._name, self._timestamp, fold, dict(self.data), self._severity, self._step, self._window, own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._name, timestamp, fold, data, self._severity, self._step, self._window, own = state
        self._timestamp = timestamp.replace(fold=fold)
        self._data = dict(data)
        if own:
            self.__dict__.update(own)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (self._name, self._timestamp, self.data, self._severity) == (
            other._name,
            other._timestamp,
            other.data,
            other._severity,
        )

    def __hash__(self) -> int:
        return hash((self._name, self._timestamp))

    def __repr__(self) -> str:
        severity = "" if self._severity is Severity.INFO else f", severity=Severity.{self._severity.name}"
        return f"{type(self).__name__}({self._name!r}, {self._timestamp!r}, {self.data!r}{severity})"


def text(what: str, value: object) -> str:
    """``value`` as a plain str: bytes are decoded, as torch does; anything else than text is refused."""
    if type(value) is str:
        decoded = value
    elif isinstance(value, (bytes, bytearray)):
        return value.decode()
    elif isinstance(value, str):
        decoded = str.__str__(value)
    else:
        raise TypeError(f"{what} must be a str, got {type(value).__qualname__}: {value!r:.80}")
    if not decoded.isascii():
        try:
            decoded.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"{what} must be text that UTF-8 can hold, got {value!r:.80}") from error
    return decoded


def _datetime(timestamp: object) -> dt.datetime:
    if type(timestamp) is dt.datetime:
        return timestamp
    if isinstance(timestamp, dt.datetime):  # pandas.Timestamp and the like: plain, as torch hands it back
        return dt.datetime.combine(timestamp.date(), timestamp.timetz())
    if isinstance(timestamp, dt.date):
        return dt.datetime.combine(timestamp, dt.time())
    if isinstance(timestamp, dt.time):
        return dt.datetime.combine(dt.date(1970, 1, 1), timestamp)
    raise TypeError(
        f"Event timestamp must be a datetime such as datetime.now(), got {type(timestamp).__qualname__}: "
        f"{timestamp!r:.80}"
    )


def scalar(what: str, value: object) -> str | int | float | bool:
    """``value`` as a plain str, int, float or bool; what OTLP and TensorBoard could not take is refused."""
    value = _plain(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{what}: an int must fit in 64 bits, got {number}; send it as a str")
        return number
    if isinstance(value, (str, bytes)):
        return text(what, value)
    raise TypeError(f"{what}: a value must be a str, int, float or bool, got {type(value).__qualname__}")


def _plain(value: object) -> object:
    """A NumPy number as Python's; everything else as it is."""
    numpy = sys.modules.get("numpy")  # whoever hands a NumPy scalar over has imported it
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    if isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numpy.integer) and not isinstance(value, numpy.timedelta64):
        return int(value)
    if isinstance(value, numpy.floating):
        return float(value)
    return value
