"""One point of a TensorBoard chart, checked in the caller's thread."""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.attributes import fits_int64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel import Histogram


class Hyperparameters(NamedTuple):
    """The hyperparameters of a run, by name."""

    values: Mapping[str, str | bool | float]


class Point(NamedTuple):
    """A number, a text, a distribution or hyperparameters, of one tag at one step.

    Attributes:
        tag: The chart's name.
        value: The number, the text, the distribution or the hyperparameters.
        step: The position on the x axis; None only if ``rising``.
        walltime: Seconds since the Unix epoch.
        rising: The step is assigned when the point is written, so that the steps of a tag never fall.
    """

    tag: str
    value: float | str | Histogram | Hyperparameters
    step: int | None
    walltime: float
    rising: bool = False

    @classmethod
    def scalar(cls, tag: object, value: Any, global_step: Any, walltime: Any) -> Point:
        """Check the arguments of ``add_scalar``."""
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError(f"value must be a real number, got {_given(value)}; use add_text for text")
        return cls(_tag(tag), _real("value", value), _step(global_step), _walltime(walltime))

    @classmethod
    def text(cls, tag: object, value: object, global_step: Any, walltime: Any) -> Point:
        """Check the arguments of ``add_text``."""
        if not isinstance(value, str):
            raise TypeError(f"text must be a str, got {_given(value)}; use add_scalar for a number")
        return cls(_tag(tag), value, _step(global_step), _walltime(walltime))

    @property
    def size(self) -> int:
        """Number of points: 1."""
        return 1

    def points(self) -> tuple[Point]:
        """Return the point itself."""
        return (self,)


def _tag(tag: object) -> str:
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str such as 'loss/train', got {_given(tag)}")
    return tag


def _real(what: str, value: Any) -> float:
    try:
        return float(value)
    except Exception as error:
        raise TypeError(f"{what} must be a real number that fits in a float, got {_given(value)}") from error


def _step(global_step: Any) -> int:
    if global_step is None:
        return 0
    try:
        step = operator.index(global_step)
    except TypeError as error:
        raise TypeError(f"global_step must be an int or None, got {_given(global_step)}") from error
    if not fits_int64(step):
        raise ValueError(f"global_step must fit in 64 bits, got {step}")
    return step


def _walltime(walltime: Any) -> float:
    return time.time() if walltime is None else _real("walltime (seconds since the Unix epoch)", walltime)


def _given(value: object) -> str:
    return f"{type(value).__qualname__}: {value!r:.80}"
