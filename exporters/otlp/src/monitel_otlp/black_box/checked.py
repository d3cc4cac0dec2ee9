"""Checks of the values in a black box: their types and ranges are those that the writer gives them.

Readers behind these checks need no others. A box that was damaged, or written by something else, is refused.
"""

from __future__ import annotations

import math
from typing import Any

from monitel_otlp.boxes.layout import text, texts, whole
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.lock import Owner

#: Waits and open ranges in a description of a process.
MOST_IN_PROGRESS = 100

_LEAST = -(2**63)  # of an int of 64 bits
_LONGEST_S = 2**63 / 1e9  # seconds
_LONGEST_NAME = 10_000  # characters, of a wait, a range, an activity or a stage
_EVENT_FIELDS, _RECORD_FIELDS = 10, 12
_SERIES_FIELDS = 12


def check_header(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a header, with an :class:`Owner`.

    Raises:
        ValueError: A value is not one of a header.
        KeyError: A value is missing.
        TypeError: The owner has other fields.
    """
    owner = Owner(*texts(values["owner"]))
    if not _is_number(owner.pid) or not (_is_number(owner.start) or not owner.start):
        raise ValueError("expected the numbers of a process")
    whole(values["created_ns"])
    _of(bytes, values["resource"])
    texts(values["scope"])
    text(values["spool_dir"])
    text(values["run"])
    texts(values.get("off", ()))
    suffix, size, form = values["mapping"]
    _of(str, suffix), whole(size), _of(str, form)
    return {**values, "owner": owner}


def check_cut(values: Any) -> tuple[Any, ...]:
    """Return the values of a :class:`monitel_otlp.black_box.cut.Cut`.

    Raises:
        ValueError: A value is not one of a cut.
        TypeError: There are no such fields.
    """
    number, time_ns, monotonic_ns, last, parts, below, done, windows, state, counters, context = values
    for each in (number, time_ns, monotonic_ns, last, below, *_of(list, done)):
        whole(each)
    _of(bytes, windows), _of(bytes, state)
    for signal, body, items, weights, synthetic in _of(list, parts):
        if signal not in SIGNALS:
            raise ValueError("expected a signal")
        _of(bytes, body), whole(items), _of(bytes, weights), whole(synthetic)
    for name, unit, description, attributes, total, *_ in _of(list, counters):
        _of(str, name), _of(str, unit), _of(str, description), _bytes(attributes), _number(total)
    try:
        _check_context(_of(dict, context))
    except (ValueError, TypeError):
        context = {}  # a senseless description of the process costs only itself
    return (*values[:-1], context)


def check_state(values: Any) -> tuple[Any, Any]:
    """Return the values of Stats and of series; see :func:`monitel_otlp.black_box.cut.pack_state`.

    Raises:
        ValueError: A value is not one of a Stat or of a series.
        TypeError: There are no such fields.
    """
    stats, series = values
    for plain, count, total, *more in series:
        if len(plain) != _SERIES_FIELDS:
            raise ValueError("expected the fields of a series")
        texts(plain[:4]), _bytes(plain[5])
        whole(count), _number(total)
        for each in more:
            _number(each)
    for serial, place, suffixes, end_ns in stats:
        whole(serial), texts(suffixes), whole(end_ns)
        if whole(place) >= len(series):
            raise ValueError("expected the number of a series")
    return stats, series


def check_event(values: Any) -> Any:
    """Return the values of an event; see :data:`monitel_otlp.logs.mapping.PlainEvent`.

    Raises:
        ValueError: A value is not one of an event.
    """
    if type(values) is not tuple or len(values) not in {_EVENT_FIELDS, _RECORD_FIELDS}:
        raise ValueError("expected the fields of an event")
    time_ns, observed_ns, severity, name, _, attributes, dropped, trace_id, span_id, flags, *of_logger = values
    for each in (time_ns, observed_ns, severity):
        whole(each, _LEAST)
    _of(str, name), _of(dict, attributes), whole(dropped), _of(bytes, trace_id), _of(bytes, span_id), whole(flags)
    for each in of_logger:
        _of(str, each)
    return values


def _check_context(context: dict[str, Any]) -> None:
    for name in ("step", "first_step"):
        if (step := context.get(name)) is not None:
            whole(step, _LEAST)
    for key, thread, seconds in _few(context.get("waits", ())):
        _name(key), whole(thread), _seconds(seconds)
    for name, seconds in _few(context.get("ranges", ())):
        _name(name), _seconds(seconds)
    if activity := context.get("activity"):
        name, seconds = activity
        _name(name), _seconds(seconds)
    if stage := context.get("stage"):
        name, _, seconds, thread = stage
        _name(name), _seconds(seconds), whole(thread)
    whole(context.get("thread") or 0)
    if (goodput := context.get("goodput")) is not None:
        _of(float, goodput)


def _few(values: Any) -> Any:
    if type(values) not in {list, tuple} or len(values) > MOST_IN_PROGRESS:
        raise ValueError(f"expected at most {MOST_IN_PROGRESS} entries")
    return values


def _name(value: Any) -> Any:
    if len(_of(str, value)) > _LONGEST_NAME:
        raise ValueError(f"expected a name of at most {_LONGEST_NAME:,} characters")
    return value


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected a value of the type {kind.__name__}")
    return value


def _bytes(values: Any) -> Any:
    for each in _of(list, values):
        _of(bytes, each)
    return values


def _number(value: Any) -> Any:
    if type(value) not in {int, float}:
        raise ValueError("expected a number")
    return value


def _seconds(value: Any) -> Any:
    _number(value)
    if not (math.isfinite(value) and abs(value) <= _LONGEST_S):
        raise ValueError("expected a number of seconds")
    return value


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and len(digits) < 20  # noqa: PLR2004  64 bits
