"""Attributes of a range's span: step, thread, and the arguments that OpenTelemetry can represent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates, fits_int64, items_of, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.profiler.ranges import Range, Track

    Scalar = str | bool | int | float
    Attribute = Scalar | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]

_log = logging.getLogger("monitel.otel")

OWN = frozenset({"training.step", "thread.id", "thread.name"})


class RangeAttributes:
    """Converts ranges to attributes. Unsuitable arguments are left out, with one warning per range name."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def of(self, found: Range) -> dict[str, Attribute]:
        """Return the attributes of a range, except its arguments."""
        attributes: dict[str, Attribute] = {} if found.step is None else {"training.step": found.step}
        return attributes | of_track(found.track)

    def of_args(self, name: str, args: Any) -> dict[str, Attribute]:
        """Return a range's arguments as attributes: a str as ``args``, a mapping as one attribute per item."""
        if args is None:
            return {}
        if isinstance(args, str):
            return {"args": escape_surrogates(args)}
        attributes: dict[str, Attribute] = {}
        warn = partial(self._warn_once, name)
        for key, value in items_of(args, warn) if isinstance(args, Mapping) else [("args", args)]:
            attribute, text = _attribute(value), text_of(key)
            if attribute is None or not text or text in OWN:
                warn(text)
            else:
                attributes[text] = attribute
        return attributes

    def _warn_once(self, name: str, key: object, _value: object = None) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("range %r: argument %r cannot be an attribute and is left out", name, key)


def of_track(track: Track) -> dict[str, Attribute]:
    """Return the attributes of a thread, with OpenTelemetry's names."""
    return {"thread.id": track.thread_id, "thread.name": escape_surrogates(track.thread_name)}


def _attribute(value: Any) -> Attribute | None:
    """Return a value that OpenTelemetry can represent, or None. Never reads a tensor, which may be on a device."""
    if isinstance(value, (list, tuple)):
        items = [_scalar(each) for each in value]
        kinds = {type(each) for each in items}
        if kinds == {int, float}:
            return [float(each) for each in items]  # type: ignore[arg-type]  # all are numbers
        return items if len(kinds) <= 1 and None not in items else None  # type: ignore[return-value]
    return _scalar(value)


def _scalar(value: Any) -> Scalar | None:
    try:
        if isinstance(value, str):
            return escape_surrogates(value)
        if isinstance(value, bool):
            return value
        if isinstance(value, Integral):
            number = int(value)
            return number if fits_int64(number) else str(number)
        return float(value) if isinstance(value, Real) else None
    except Exception:  # too large for a float or for a text, or raised by its class
        return None
