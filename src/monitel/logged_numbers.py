"""Logged numbers: the Event of one ``log()`` call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from monitel import clock
from monitel.attributes import AttributeValue, element_of, fits_int64, items_of, recordable, text_of
from monitel.counter import leave_out
from monitel.event import Event
from monitel.handlers import Log, details_of, log_event
from monitel.process.failures import ignored
from monitel.stats._window import get_step
from monitel.stats.pending import waiting
from monitel.training.step import checked_step

_EVENT = "run.log"
_DEEPEST = 5  # levels of nested mappings; those that refer to each other could have any number of names
_NOTHING: dict[Any, Any] = {}


class LoggedNumbers(Event):
    """The Event of one :func:`monitel.log` call. ``data`` has the numbers by name; ``step`` is the step of the call.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.log({"loss": 0.25}, step=10, split="validation")
        >>> events[0].data, events[0].step, dict(events[0].attributes)
        ({'loss': 0.25}, 10, {'split': 'validation'})
    """

    __slots__ = ("_attributes",)

    _attributes: dict[str, AttributeValue]

    def __init__(
        self,
        data: Mapping[str, float],
        *,
        step: int | None = None,
        attributes: Mapping[str, AttributeValue] = MappingProxyType({}),
    ) -> None:
        super().__init__(_EVENT, clock.now(), data)
        self._timestamp, self._time_ns = None, clock.time_ns()
        self._step, self._attributes = step, dict(attributes)

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Attributes of each number. Read-only."""
        return MappingProxyType(self._attributes)

    @property
    def time_ns(self) -> int:
        """Time of the call, in nanoseconds since the Unix epoch."""
        return self._time_ns

    def _later(self, data: dict[str, Any]) -> LoggedNumbers:
        """Return the event of further numbers of the same call, which are recorded later."""
        event = self._of(_EVENT, self._time_ns, data, self._step)
        event._timestamp, event._attributes = self._timestamp, self._attributes
        return event

    def _fields(self) -> tuple[Any, ...]:
        time_ns = self._time_ns if self._timestamp is None else clock.timestamp_ns(self._timestamp)
        return time_ns, self._time_ns, self._severity._value_, self._name, self._step, self._attributes, self._data


def log(values: Mapping[Any, Any] = _NOTHING, /, *, step: float | None = None, **attributes: Any) -> None:
    """Record numbers, each at the present time and step, without a window.

    Use it for numbers of which each counts, such as those of an evaluation. A :class:`monitel.Stat` costs less where
    thousands of samples are better summarized.

    With monitel-otlp each number is a point of a gauge, and the call is a log record with all numbers and the step.
    With monitel-tensorboard each number is a scalar at the step. After :func:`monitel.torch.instrument`, a number that
    is still on a device is recorded when it arrives, with the time and step of the call. Later numbers of its name wait
    for it, others do not.

    Values that are not numbers, such as None, strings and arrays of several elements, are left out. They are counted
    in ``monitel.log.left_out``, and the first one is logged. So are values with an empty name, and attributes of other
    types.

    Args:
        values: Numbers by name: Python numbers, and objects that convert to a float, such as arrays and tensors of one
            element. The names of nested mappings are joined by dots. If two names become the same, the last one counts.
        step: The training step, a whole number; by default that of :func:`monitel.set_step`.
        **attributes: Attributes of each number, such as ``split="validation"``: str, bool, int or float. Without
            ``values``, only text is an attribute, and the others are the numbers.

    Raises:
        TypeError: ``values`` is not a mapping, or ``step`` is not a whole number.
        ValueError: ``step`` is negative or beyond 64 bits.
        Exception: A handler has raised it, as in :func:`monitel.log_event`.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.log({"loss": 0.25, "validation": {"accuracy": 0.9}}, step=10)
        ...     monitel.log(loss=0.25, step=10)
        >>> events[0].data, events[1].data
        ({'loss': 0.25, 'validation.accuracy': 0.9}, {'loss': 0.25})
    """
    if values is _NOTHING:
        values, attributes = attributes, {}
        for name, each in values.items():
            if type(each) is not float and issubclass(type(each), str):
                attributes[name] = each
        if attributes:
            values = {name: each for name, each in values.items() if name not in attributes}
    if type(values) is not dict and not isinstance(values, Mapping):
        raise TypeError(
            "log() takes a mapping of names to numbers, or the numbers by keyword as in log(loss=0.5), "
            f"got {type(values).__qualname__}: {values!r:.80}"
        )
    own_step = get_step() if step is None else checked_step(step)
    numbers: dict[str, Any] = {}
    write: Log = log_event
    checked = recordable(attributes, _left_out) if attributes else {}
    if not _flatten(values, "", numbers, 0) or waiting:
        numbers, write = _converted(numbers)
    event = LoggedNumbers._of(_EVENT, clock.time_ns(), numbers, own_step)
    event._attributes = checked
    write(event)


_left_out = partial(leave_out, "log()")


def _flatten(values: Mapping[Any, Any], prefix: str, found: dict[str, Any], depth: int) -> bool:
    """Collect the values by dotted name; return True if all of them are exactly floats and ints, as usual."""
    plain = True
    for key, value in values.items() if type(values) is dict else items_of(values, _left_out):
        name = key if type(key) is str and key.isascii() else text_of(key)
        if not name:
            _left_out(key, value)
            continue
        if prefix:
            name = f"{prefix}.{name}"
        kind = type(value)
        if kind is float or (kind is int and fits_int64(value)):
            found[name] = value
        elif issubclass(kind, Mapping) and depth < _DEEPEST:  # isinstance() raises if it is a proxy of what is gone
            plain = _flatten(value, name, found, depth + 1) and plain
        else:
            found[name] = value
            plain = False
    return plain


def _converted(values: dict[str, Any]) -> tuple[dict[str, Any], Log]:
    """Return the numbers, and the function that logs their Event.

    A number that is still on a device is not among the numbers: the function adds it when it has arrived.
    """
    details, write = details_of(values, _left_out)
    numbers = {}
    for name, value in details.items():
        with ignored:
            numbers[name] = _number(value)
            continue
        _left_out(name, value)
    return numbers, write


def _number(value: Any) -> float:
    element = element_of(value)
    if isinstance(element, int) and fits_int64(element):
        return int.__int__(element)
    if not (hasattr(type(element), "__float__") or hasattr(type(element), "__index__")):
        raise TypeError("float() would read text")
    return float.__float__(float(element))
