"""One point of a TensorBoard chart, checked in the caller's thread, and the charts that it is placed in."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.attributes import fits_int64
from monitel_tensorboard.process import logger

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from monitel import Histogram


class Hyperparameters(NamedTuple):
    """The hyperparameters of a run, by name."""

    values: Mapping[str, str | bool | float]


class Point(NamedTuple):
    """A number, a text, a distribution or hyperparameters, of one tag at one step.

    Attributes:
        tag: The chart's name.
        value: The number, the text, the distribution or the hyperparameters.
        step: The position on the x axis; None, only if ``recorded``, numbers the points of the tag from 0 on.
        walltime: Seconds since the Unix epoch.
        recorded: It is dropped if it is late, with an earlier step and time than the point before it: a reader would
            show it instead of that one.
        whole: It has everything that the point before it has, if both are at the same step.
    """

    tag: str
    value: float | str | Histogram | Hyperparameters
    step: int | None
    walltime: float
    recorded: bool = False
    whole: bool = False

    @classmethod
    def scalar(cls, tag: object, value: Any, global_step: Any, walltime: Any) -> Point:
        """Check the arguments of ``add_scalar``."""
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError(f"scalar_value must be a real number, got {_given(value)}; use add_text for text")
        return cls(
            _tag(tag), _real("scalar_value", value), checked_step("global_step", global_step), _walltime(walltime)
        )

    @classmethod
    def text(cls, tag: object, value: object, global_step: Any, walltime: Any) -> Point:
        """Check the arguments of ``add_text``."""
        if not isinstance(value, str):
            raise TypeError(f"text_string must be a str, got {_given(value)}; use add_scalar for a number")
        return cls(_tag(tag), value, checked_step("global_step", global_step), _walltime(walltime))

    @property
    def size(self) -> int:
        """Number of points: 1."""
        return 1

    def points(self, _charts: Charts) -> tuple[Point]:
        """Return the point itself."""
        return (self,)


class Charts:
    """The charts of a writer, to which points are added in the order in which they are written.

    Args:
        first_step: The step of a tag's first point that has none.

    Attributes:
        replaced: Number of points at a step that their chart had reached before.
        latest: The last window of each Stat, and text of each event, with which those at the same step are merged.
        config: All values of the configuration.
    """

    def __init__(self, first_step: int) -> None:
        self.replaced = 0
        self._before = first_step - 1
        self.latest: dict[Hashable, Any] = {}
        self.config: dict[str, str | bool | float] = {}
        self._charts: dict[str, tuple[type, int, float, float]] = {}  # kind, last and highest step, last time, by tag
        self._warned: set[str] = set()

    def add(self, point: Point) -> Point | None:
        """Return ``point`` with its step, or None if it is dropped."""
        new = type(point.value)
        kind, last, highest, walltime = self._charts.get(point.tag, (new, self._before, -math.inf, -math.inf))
        if kind is not new:
            self._warn_once("%r has a %s, and is given a %s: dropped", point.tag, kind.__name__, new.__name__)
            return None
        step = last + 1 if point.step is None else point.step
        if point.recorded and step < last and point.walltime < walltime:
            return None
        if step <= highest and not (point.whole and step == last):
            self.replaced += 1
            self._warn_once("%r has step %d after %d: TensorBoard hides points from it on", point.tag, step, last)
        self._charts[point.tag] = kind, step, max(step, highest), point.walltime
        return point._replace(step=step)

    def _warn_once(self, message: str, *details: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(f"{message} (further ones are only counted)", *details)


def _tag(tag: object) -> str:
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str such as 'loss/train', got {_given(tag)}")
    return tag


def _real(what: str, value: Any) -> float:
    try:
        return float(value)
    except Exception as error:
        raise TypeError(f"{what} must be a real number that fits in a float, got {_given(value)}") from error


def checked_step(what: str, value: Any) -> int:
    """Return a step without its fraction, as torch's writer does; 0 for None."""
    if value is None:
        return 0
    try:
        step = int(value) if not isinstance(value, (str, bytes, bytearray)) else None
    except Exception:
        step = None
    if step is None:
        raise TypeError(f"{what} must be an int, a finite float or None, got {_given(value)}")
    if not fits_int64(step):
        raise ValueError(f"{what} must fit in 64 bits, got {step}")
    return step


def _walltime(walltime: Any) -> float:
    return time.time() if walltime is None else _real("walltime (seconds since the Unix epoch)", walltime)


def _given(value: object) -> str:
    return f"{type(value).__qualname__}: {value!r:.80}"
