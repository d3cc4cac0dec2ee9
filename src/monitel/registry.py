"""Stats by name, and what is done with all live Stats at once."""

from __future__ import annotations

import datetime as dt
import os
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from monitel import _window
from monitel.aggregation import TORCHS
from monitel.event import text
from monitel.handlers import raise_first
from monitel.stats import Stat, checked_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from monitel.aggregation import Aggregation
    from monitel.window import AttributeValue

_One = TypeVar("_One")
_DEFAULTS: dict[str, Any] = {"aggregations": TORCHS, "window_size": dt.timedelta(seconds=60)}
_WINDOWS_A_PAUSE = 50

_lock = RLock()
_stats: dict[Hashable, Stat] = {}


def stat(
    name: str,
    aggregations: Sequence[Aggregation] | None = None,
    window_size: dt.timedelta | float | None = None,
    max_samples: int | None = None,
    *,
    unit: str | None = None,
    description: str | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    monotonic: bool | None = None,
) -> Stat:
    """Get the Stat of this name and these attributes, made at the first call and kept alive.

    Args:
        name: As for :class:`monitel.Stat`, and so are the others. What is left out is, at the first call, the
            default (torch's six aggregations, 60 s), and later whatever the Stat was made with.
        aggregations: What ``get()`` and the events report.
        window_size: A timedelta, or a float in seconds.
        max_samples: The most samples that a window takes.
        unit: UCUM unit.
        description: What is measured, in words.
        attributes: Part of the Stat's identity.
        monotonic: True when samples are never negative.

    Returns:
        The same object for the same name and attributes. In a forked child it is the child's own.

    Raises:
        TypeError: As :class:`monitel.Stat`.
        ValueError: As :class:`monitel.Stat`; or the Stat was made with another window_size, unit and so on.

    Example:
        >>> import monitel
        >>> monitel.stat("loss", attributes={"split": "val"}).add(0.5)
        >>> monitel.stat("loss", attributes={"split": "val"}).count
        1
    """
    asked = {
        "aggregations": aggregations,
        "window_size": window_size,
        "max_samples": max_samples,
        "unit": unit,
        "description": description,
        "monotonic": monotonic,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    name, checked = text("Stat name", name), checked_attributes(attributes)
    attributes_key = frozenset((key, type(value), value) for key, value in checked.items())
    identity = (name, attributes_key) if checked else name
    known = _stats.get(identity)
    if known is None or given:
        made = Stat(name, **{**_DEFAULTS, **given}, attributes=checked)  # checks every argument
        with _lock:
            known = _stats.setdefault(identity, made)
        for key in given:
            if (was := _setting(known, key)) != (wanted := _setting(made, key)):
                raise ValueError(f"Stat {name!r} was made with {key}={was!r}, not {wanted!r}")
    return known


def _setting(made: Stat, key: str) -> object:
    return getattr(made, key) if key in {"window_size", "max_samples"} else getattr(made.definition, key)


def flush() -> None:
    """Close the open window of every live Stat and log it, oldest Stat first.

    Every Stat is flushed, also after a handler has raised; then the first exception propagates.
    """
    _each(Stat.flush, _window.live())


def close_expired_windows(pause: Callable[[], object] | None = None) -> int:
    """Close the windows whose time is over, so that a Stat nobody adds to is heard of all the same.

    An exporter's thread calls this every few seconds; handlers then run in that thread.

    Args:
        pause: Called after every 50 windows, for a thread that must not keep others waiting.

    Returns:
        How many windows were closed.
    """
    expired = _window.expired()
    _each(Stat._close_expired, expired, pause)
    return len(expired)


def _each(action: Callable[[_One], None], ones: list[_One], pause: Callable[[], object] | None = None) -> None:
    failures: list[BaseException] = []
    for number, each in enumerate(ones, 1):
        try:
            action(each)
        except BaseException as error:
            failures.append(error)
        if pause is not None and number % _WINDOWS_A_PAUSE == 0:
            pause()
    if failures:
        raise_first(failures)


def _start_empty() -> None:
    """In a forked child: what the parent has collected so far, the parent logs."""
    global _lock
    _lock = RLock()
    for each in _window.live():
        each._forget()


os.register_at_fork(after_in_child=_start_empty)
