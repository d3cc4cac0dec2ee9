"""The definition of a Stat: its aggregations and other arguments, and their checks.

``docs/how-to/replace-torch-monitor.md`` lists the differences from torch.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from enum import Enum
from operator import index
from types import GeneratorType, MappingProxyType
from typing import Any, NamedTuple, NoReturn

from monitel.attributes import INT64_MAX, AttributeValue, fits_int64
from monitel.process.failures import pass_on

#: As ``max_samples``, and as the window's length in nanoseconds.
NO_LIMIT = INT64_MAX

_MILLISECOND_NS = 1_000_000


class Aggregation(Enum):
    """A number, or a distribution, that a :class:`monitel.Stat` reports for the samples of one window.

    The members are also names of the package: ``monitel.MEAN is monitel.Aggregation.MEAN``. Names and values are those
    of torch (``torch/csrc/monitor/python_init.cpp``); unlike in torch, ``VALUE`` works and the type is a real
    :class:`enum.Enum`. ``HISTOGRAM`` and ``STDDEV`` are monitel extensions, with values that torch does not use, and
    are collected only if they are requested.

    Raises:
        ValueError: A number that is not a member's value, as in ``Aggregation(99)``.
        TypeError: Not a number, as in ``Aggregation("SUM")``; use ``Aggregation["SUM"]`` for a name.

    Example:
        >>> from monitel import Aggregation
        >>> Aggregation.SUM, int(Aggregation.SUM), Aggregation["SUM"] is Aggregation(4)
        (<Aggregation.SUM: 4>, 4, True)
    """

    VALUE = 0  #: the last sample
    MEAN = 2  #: sum / count
    COUNT = 3  #: number of samples, as a float
    SUM = 4  #: sum of the samples, added from first to last
    MAX = 5  #: the largest sample
    MIN = 6  #: the smallest sample
    HISTOGRAM = 100  #: distribution of the samples, with quantiles
    STDDEV = 101  #: standard deviation of the samples (population, not sample)

    def __init__(self, value: Any) -> None:  # noqa: ARG002  the enum keeps it
        self._suffix = self._name_.lower()

    @property
    def suffix(self) -> str:
        """The last part of a metric's name: ``"mean"`` in ``loss.mean``."""
        return self._suffix

    __hash__ = object.__hash__  # that of Enum is written in Python, and members are looked up for each window

    def __index__(self) -> int:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        allowed = ", ".join(f"{member.value} ({member.name})" for member in cls)
        error = ValueError if hasattr(value, "__index__") else TypeError
        raise error(f"Aggregation() takes one of {allowed}, got {value!r}")


VALUE, MEAN, COUNT, SUM, MAX, MIN, HISTOGRAM, STDDEV = Aggregation
TORCHS = (VALUE, MEAN, COUNT, SUM, MAX, MIN)  # collected for every Stat, at no additional cost
_SHARED: dict[tuple[Aggregation, ...], tuple[Aggregation, ...]] = {}  # at most 255, for any number of Stats


class StatDefinition(NamedTuple):
    """The arguments that a Stat was created with; all windows of one Stat share one definition.

    Attributes:
        name: The Stat's name.
        aggregations: The requested aggregations, in the order of :class:`monitel.Aggregation`, without duplicates.
        unit: UCUM unit such as ``"s"`` or ``"By"``; ``""`` when not given.
        description: The measured quantity, in words.
        attributes: Attributes that distinguish Stats of the same name. Read-only.
        monotonic: True when samples are never negative, so that their sum never falls.
    """

    name: str
    aggregations: tuple[Aggregation, ...]
    unit: str
    description: str
    attributes: Mapping[str, AttributeValue]
    monotonic: bool

    def __hash__(self) -> int:
        return hash((self.name, self.aggregations))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.name, self.aggregations, self.unit, self.description, dict(self.attributes), self.monotonic
        return _definition, fields


def _definition(  # noqa: PLR0917  called by pickle
    name: str, aggregations: tuple[Aggregation, ...], unit: str, description: str, attributes: Any, monotonic: bool
) -> StatDefinition:
    return StatDefinition(name, aggregations, unit, description, MappingProxyType(attributes), monotonic)


def checked_aggregations(aggregations: object) -> tuple[Aggregation, ...]:
    """Return the aggregations in the order of the enum, without duplicates."""
    iterable = (
        hasattr(aggregations, "__getitem__")
        and hasattr(aggregations, "__len__")
        and not isinstance(aggregations, (Mapping, str, bytes, bytearray))
    ) or isinstance(aggregations, (set, frozenset, GeneratorType, map, type({}.keys()), type({}.values())))
    if not iterable or isinstance(aggregations, type):
        raise TypeError(
            "aggregations must be a list of names or Aggregation members, such as ['mean', monitel.COUNT], "
            f"got {type(aggregations).__qualname__}"
        )
    given = set()
    for member in aggregations:  # type: ignore[attr-defined]  # an iterable by the check above
        named = Aggregation.__members__.get(member.upper()) if isinstance(member, str) else member
        if not isinstance(named, Aggregation):
            allowed = ", ".join(each.suffix for each in Aggregation)
            raise TypeError(f"aggregations must be Aggregation members or names ({allowed}), got {member!r:.80}")
        given.add(named)
    asked = tuple(member for member in Aggregation if member in given)
    return _SHARED.setdefault(asked, asked)


def window_length_ns(window_size: object) -> int:
    """Return the length of a window in nanoseconds; :data:`NO_LIMIT` for 146 years and more."""
    if isinstance(window_size, dt.timedelta):
        milliseconds = window_size // dt.timedelta(milliseconds=1)
    elif isinstance(window_size, float):
        if math.isnan(window_size):
            raise ValueError("window_size must be at least 1 ms, got nan")
        milliseconds = int(max(-1.0, min(window_size * 1000, 1e300)))
    else:
        suggestion = f"; write {window_size}.0 for seconds" if type(window_size) is int else ""
        raise TypeError(
            "window_size must be a timedelta, or seconds as a float such as 60.0, "
            f"got {type(window_size).__qualname__}{suggestion}"
        )
    if milliseconds < 1:
        raise ValueError(f"window_size must be at least 1 ms, got {window_size!r}")
    length_ns = milliseconds * _MILLISECOND_NS
    return length_ns if length_ns < 2**62 else NO_LIMIT


def checked_max_samples(max_samples: Any) -> int:
    """Return the sample limit as an int."""
    kind = type(max_samples)
    to_int = index if hasattr(kind, "__index__") else int
    if isinstance(max_samples, (float, str, bytes)) or not hasattr(kind, f"__{to_int.__name__}__"):
        raise TypeError(f"max_samples must be an int, got {kind.__qualname__}: {max_samples!r:.80}")
    try:
        number = to_int(max_samples)
    except Exception as error:
        pass_on()
        raise TypeError(f"max_samples must be an int; converting {kind.__qualname__} failed: {error}") from error
    if not fits_int64(number):
        raise TypeError(f"max_samples must fit in 64 bits, got {number}; leave it out for no limit")
    if number < 1:
        raise ValueError(f"max_samples must be at least 1, got {number}; leave it out for no limit")
    return number
