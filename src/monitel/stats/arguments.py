"""The checks of a Stat's arguments. ``docs/how-to/replace-torch-monitor.md`` lists the differences from torch."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from operator import index
from types import GeneratorType
from typing import Any

from monitel.attributes import INT64_MAX, fits_int64
from monitel.stats.aggregation import Aggregation

#: As ``max_samples``, and as the window's length in nanoseconds.
NO_LIMIT = INT64_MAX

_MILLISECOND_NS = 1_000_000
_SHARED: dict[tuple[Aggregation, ...], tuple[Aggregation, ...]] = {}  # at most 255, for any number of Stats


def checked_aggregations(aggregations: object) -> tuple[Aggregation, ...]:
    """Return the aggregations in the order of the enum, without duplicates.

    Raises:
        TypeError: Not a list, or a member that is neither an Aggregation nor the name of one.
    """
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
    """Return the length of a window in nanoseconds; :data:`NO_LIMIT` for 146 years and more.

    Raises:
        TypeError: Neither a timedelta nor a float.
        ValueError: Less than 1 ms, or NaN.
    """
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
    """Return the sample limit as an int.

    Raises:
        TypeError: Not an int, or beyond 64 bits.
        ValueError: Below 1.
    """
    kind = type(max_samples)
    to_int = index if hasattr(kind, "__index__") else int
    if isinstance(max_samples, (float, str, bytes)) or not hasattr(kind, f"__{to_int.__name__}__"):
        raise TypeError(f"max_samples must be an int, got {kind.__qualname__}: {max_samples!r:.80}")
    try:
        number = to_int(max_samples)
    except Exception as error:
        raise TypeError(f"max_samples must be an int; converting {kind.__qualname__} failed: {error}") from error
    if not fits_int64(number):
        raise TypeError(f"max_samples must fit in 64 bits, got {number}; leave it out for no limit")
    if number < 1:
        raise ValueError(f"max_samples must be at least 1, got {number}; leave it out for no limit")
    return number
