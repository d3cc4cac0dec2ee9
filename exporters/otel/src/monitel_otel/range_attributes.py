"""What a span says of a range: its step, its thread, and its arguments as far as OpenTelemetry can hold them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.profiler.ranges import Range, Track

    Scalar = str | bool | int | float
    Attribute = Scalar | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]

_log = logging.getLogger("monitel.otel")

OWN = frozenset({"training.step", "thread.id", "thread.name"})


class RangeAttributes:
    """Attributes of ranges; what cannot be one is left out, and said once for each name of a range."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of(self, found: Range) -> dict[str, Attribute]:
        """The attributes of a range but for its arguments."""
        attributes: dict[str, Attribute] = {} if found.step is None else {"training.step": found.step}
        return attributes | of_track(found.track)

    def of_args(self, name: str, args: Any) -> dict[str, Attribute]:
        """The attributes that a range's arguments are: a str is ``args``, of a mapping each is one."""
        if args is None:
            return {}
        if isinstance(args, str):
            return {"args": _readable(args)}
        attributes: dict[str, Attribute] = {}
        for key, value in args.items() if isinstance(args, Mapping) else [("args", args)]:
            attribute = _attribute(value)
            if attribute is None or not isinstance(key, str) or not key or key in OWN:
                self._say(name, key)
            else:
                attributes[_readable(key)] = attribute
        return attributes

    def _say(self, name: str, key: object) -> None:
        if name not in self._said:
            self._said.add(name)
            _log.warning("range %r: %r cannot be an attribute and is left out", name, key)


def of_track(track: Track) -> dict[str, Attribute]:
    """The attributes of a thread, by OpenTelemetry's names."""
    return {"thread.id": track.thread_id, "thread.name": _readable(track.thread_name)}


def _attribute(value: Any) -> Attribute | None:
    """A value that OpenTelemetry can hold; None where there is none. Never asks a tensor, which may be on a device."""
    if isinstance(value, (list, tuple)):
        items = [_scalar(each) for each in value]
        kinds = {type(each) for each in items}
        if kinds == {int, float}:
            return [float(each) for each in items]  # type: ignore[arg-type]  # numbers all of them
        return items if len(kinds) <= 1 and None not in items else None  # type: ignore[return-value]
    return _scalar(value)


def _scalar(value: Any) -> Scalar | None:
    if isinstance(value, str):
        return _readable(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        number = int(value)
        return number if -(2**63) <= number < 2**63 else str(number)
    return float(value) if isinstance(value, Real) else None


def _readable(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
