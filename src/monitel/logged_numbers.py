"""Logged numbers: the Event of one ``log()`` call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel._window import get_step
from monitel.attributes import checked_attributes, checked_text, fits_int64
from monitel.event import Event, Severity
from monitel.handlers import details_of, log_event

if TYPE_CHECKING:
    from monitel.attributes import AttributeValue
    from monitel.handlers import Log

_log = logging.getLogger("monitel")

_EVENT = "run.log"
_DEEPEST = 20  # levels of nested mappings

_warned = False  # of the first value that is left out


class LoggedNumbers(Event):
    """The Event of one :func:`monitel.log` call. ``data`` has the numbers by name; ``step`` is the step of the call.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.log({"loss": 0.25}, step=10, split="validation")
        >>> events[0].data, events[0].step, dict(events[0].attributes)
        ({'loss': 0.25}, 10, {'split': 'validation'})
    """

    __slots__ = ("_attributes", "_left_out", "_time_ns")

    _attributes: dict[str, AttributeValue]
    _left_out: int
    _time_ns: int

    def __init__(
        self,
        data: Mapping[str, float],
        *,
        step: int | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        left_out: int = 0,
    ) -> None:
        self._time_ns = clock.time_ns()
        super().__init__(_EVENT, clock.local_datetime(self._time_ns), data)
        self._step = step
        self._attributes = dict(checked_attributes(attributes))
        self._left_out = left_out

    @classmethod
    def _of(cls, data: dict[str, Any], step: int | None, attributes: dict[str, AttributeValue], left_out: int) -> Event:
        """Return the Event of checked arguments, in half the time of the constructor."""
        event = cls.__new__(cls)
        event._time_ns = time_ns = clock.time_ns()
        event._name = _EVENT
        event._timestamp = clock.local_datetime(time_ns)
        event._data = data
        event._severity = Severity.INFO
        event._step = step
        event._window = None
        event._attributes = attributes
        event._left_out = left_out
        return event

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Attributes of each number. Read-only."""
        return MappingProxyType(self._attributes)

    @property
    def left_out(self) -> int:
        """Number of values of the call that are not in ``data``, because they are not numbers."""
        return self._left_out

    @property
    def time_ns(self) -> int:
        """Time of the call, in nanoseconds since the Unix epoch."""
        return self._time_ns

    def __getstate__(self) -> tuple[Any, ...]:
        return super().__getstate__(), self._attributes, self._left_out, self._time_ns

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        event, attributes, self._left_out, self._time_ns = state
        self._attributes = dict(attributes)
        super().__setstate__(event)


def log(values: Mapping[str, Any], /, *, step: int | None = None, **attributes: AttributeValue) -> None:
    """Record numbers, each at the present time and step, without a window.

    Use it for numbers of which each counts, such as those of an evaluation. A :class:`monitel.Stat` costs less where
    thousands of samples are better summarized.

    With monitel-otlp each number is a point of a gauge, and the call is a log record with all numbers and the step.
    With monitel-tensorboard each number is a scalar at the step. After :func:`monitel.torch.instrument`, a number that
    is still on a device is recorded when it arrives, with the time and step of the call.

    Values that are not numbers, such as None, strings and arrays of several elements, are left out. They are counted
    (:attr:`monitel.LoggedNumbers.left_out`), and the first one is logged.

    Args:
        values: Numbers by name: Python numbers, and objects that convert to a float, such as arrays and tensors of one
            element. The names of nested mappings are joined by dots. If two names become the same, the last one counts.
        step: The training step; by default that of :func:`monitel.set_step`.
        **attributes: Attributes of each number, such as ``split="validation"``.

    Raises:
        TypeError: ``values`` is not a mapping, a name is not a str, ``step`` is not an int, or an attribute has another
            type than str, bool, int and float.
        ValueError: A name is empty, or ``step`` is negative or beyond 64 bits.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.log({"loss": 0.25, "validation": {"accuracy": 0.9}}, step=10)
        >>> events[0].data
        {'loss': 0.25, 'validation.accuracy': 0.9}
    """
    if type(values) is not dict and not isinstance(values, Mapping):
        raise TypeError(f"log() takes a mapping of names to numbers, got {type(values).__qualname__}: {values!r:.80}")
    own_step = get_step() if step is None else _checked_step(step)
    own_attributes = dict(checked_attributes(attributes)) if attributes else {}
    numbers: dict[str, Any] = {}
    write: Log = log_event
    left_out = 0
    if not _flatten(values, "", numbers, 0):
        numbers, write, left_out = _converted(numbers)
    write(LoggedNumbers._of(numbers, own_step, own_attributes, left_out))


def _checked_step(step: object) -> int:
    try:
        checked = index(step)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"step must be an int, got {type(step).__qualname__}: {step!r:.80}") from None
    if checked < 0 or not fits_int64(checked):
        raise ValueError(f"step must be from 0 to 2**63 - 1, got {checked}")
    return checked


def _flatten(values: Mapping[Any, Any], prefix: str, found: dict[str, Any], depth: int) -> bool:
    """Collect the values by dotted name; return True if all of them are exactly floats and ints, as usual."""
    plain = True
    for key, value in values.items():
        name = key if type(key) is str and key and key.isascii() else _checked_name(key)
        if prefix:
            name = f"{prefix}.{name}"
        kind = type(value)
        if kind is float or (kind is int and fits_int64(value)):
            found[name] = value
        elif isinstance(value, Mapping) and depth < _DEEPEST:
            plain = _flatten(value, name, found, depth + 1) and plain
        else:
            found[name] = value
            plain = False
    return plain


def _checked_name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a name in log() must be a str, got {type(key).__qualname__}: {key!r:.80}")
    if not key:
        raise ValueError("a name in log() must not be empty")
    return checked_text("a name in log()", key)


def _converted(values: dict[str, Any]) -> tuple[dict[str, Any], Log, int]:
    """Return the numbers, the function that logs their Event, and the number of values that were left out.

    A number that is still on a device is not among the numbers: the function adds it when it has arrived.
    """
    kept = {name: value for name, value in values.items() if _may_be_number(name, value)}
    write: Log = log_event
    try:
        details, write = details_of(kept, {})
    except Exception:  # one of the values, such as a tensor that is distributed over ranks, cannot be read
        kept = {name: value for name, value in kept.items() if _is_readable(name, value)}
        details, write = details_of(kept, {})
    left_out = len(values) - len(kept)
    numbers = {}
    for name, value in details.items():
        try:
            numbers[name] = _number(value)
        except Exception:
            _warn_once(name, value)
            left_out += 1
    return numbers, write, left_out


def _may_be_number(name: str, value: object) -> bool:
    kind = type(value)
    if not isinstance(value, (str, bytes)) and (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        return True
    _warn_once(name, value)
    return False


def _is_readable(name: str, value: object) -> bool:
    try:
        details_of({name: value}, {})
    except Exception:
        _warn_once(name, value)
        return False
    return True


def _number(value: Any) -> float:
    element = value.item() if hasattr(value, "item") else value  # of an array or a tensor
    if isinstance(element, int) and fits_int64(element):
        return int.__int__(element)
    return float.__float__(float(element))


def _warn_once(name: str, value: object) -> None:
    global _warned
    if not _warned:
        _warned = True
        _log.warning(
            "log() leaves out values that are not numbers: %r has the type %s (further values are only counted)",
            *(name, type(value).__qualname__),
        )
