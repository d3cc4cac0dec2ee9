"""The curves of a run: its numbers over steps, thinned as they grow, which rank zero stores beside its ledger."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.process.worker import Pace
from monitel.runs.stored import StoredError
from monitel.runs.values import Key, Scalar, is_loss, scalars

if TYPE_CHECKING:
    from monitel.blackbox.recorder import Series

#: The curve of the mean seconds from step to step.
STEP_TIME = "training.step.time"

_MOST, _MOST_POINTS = 60, 2_000  # curves, and points of one
_MOST_NEW = 1 << 16  # numbers between two heartbeats; of more of them the oldest are in no curve
_VERSION = 1


class Point(NamedTuple):
    """One number of a curve, or several of consecutive steps."""

    step: int  # of the last one
    mean: float
    least: float
    largest: float


class Curve(NamedTuple):
    """The finite numbers of one series; the points are in the order of their steps."""

    name: str
    attributes: tuple[tuple[str, Scalar], ...]
    unit: str
    points: tuple[Point, ...]
    last: float  # the last number, which need not be finite
    replaced: int = 0  # points that are missing, because later numbers had lower steps
    not_finite: int = 0  # numbers that have no point


@dataclass
class _Growing:
    """A curve that grows. Its points have as many numbers each, the last one perhaps fewer."""

    unit: str = ""
    stride: int = 1  # numbers in a point
    filled: int = 0  # numbers in the last point
    last: float = math.nan
    replaced: int = 0  # points
    not_finite: int = 0  # numbers
    points: list[Point] = field(default_factory=list)

    def add(self, step: int | None, value: float) -> None:
        """Add a number. A step that lies before the last one replaces what has followed it: the run was resumed."""
        self.last = value
        points = self.points
        step = (points[-1].step + 1 if points else 1) if step is None else step
        if points and step < points[-1].step:
            kept = bisect_left(points, step, key=lambda point: point.step)
            self.replaced += len(points) - kept
            del points[kept:]
            self.filled = self.stride
        if not math.isfinite(value):
            self.not_finite += 1
            return
        if points and (self.filled < self.stride or step == points[-1].step):
            self.filled += 1
            _, mean, least, largest = points[-1]
            mean += (value - mean) / self.filled
            points[-1] = Point(step, mean, min(least, value), max(largest, value))
        else:
            self.filled = 1
            points.append(Point(step, value, value, value))
            if len(points) > _MOST_POINTS:
                self._halve()

    def _halve(self) -> None:
        *whole, newest = self.points
        self.stride *= 2
        self.points = [merged(whole[each : each + 2]) for each in range(0, len(whole), 2)] + [newest]

    def encode(self, key: Key) -> bytes:
        """Return one line of a file."""
        columns: list[Any] = [*zip(*self.points, strict=True)] or [(), (), (), ()]
        if self.stride == 1 and columns[1] == columns[2] == columns[3]:
            del columns[2:]
        rounded = [columns[0], *([float(f"{each:.7g}") for each in column] for column in columns[1:])]
        counts = self.replaced, self.not_finite
        values = [_VERSION, *key, self.unit, self.stride, self.filled, self.last, *counts, rounded]
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _is_first(key: Key) -> bool:
    """Return True for the curves that others make room for: the losses, and the time of steps."""
    return key[0] == STEP_TIME or is_loss(key[0])


def merged(points: Iterable[Point]) -> Point:
    """Return one point for several, which have as many numbers each."""
    steps, means, least, largest = zip(*points, strict=True)
    return Point(steps[-1], sum(means) / len(means), min(least), max(largest))


class Curves:
    """The curves of the run of this process, which one thread reads and stores."""

    def __init__(self) -> None:
        #: Numbers that are recorded: their series, step and value, and the end of the name of the curve.
        self.new: deque[tuple[Series, int | None, float, str]] = deque(maxlen=_MOST_NEW)
        self._growing: dict[Key, _Growing] = {}
        self._made, self._spent_ns = 0, 0

    def take(self) -> None:
        """Add the numbers that were recorded since the last call."""
        pace, new = Pace(), self.new
        for _ in range(len(new)):
            series, step, value, end = new.popleft()
            self._add((series.title + end, scalars(series.plain_attributes)), series.definition.unit, step, value)
            pace.pause()

    def note_steps(self, made: int, spent_ns: int, step: int | None) -> None:
        """Add the mean time of the steps since the last call, by the number of steps and the time in them so far."""
        steps, time_ns = made - self._made, spent_ns - self._spent_ns
        if steps:
            if self._made and steps > 0 and time_ns > 0:
                self._add((STEP_TIME, ()), "s", made if step is None else step, time_ns / steps / 1e9)
            self._made, self._spent_ns = made, spent_ns

    def _add(self, key: Key, unit: str, step: int | None, value: float) -> None:
        if (growing := self._growing.get(key)) is None:
            if len(self._growing) >= _MOST and key != (STEP_TIME, ()):  # that one has always a place
                others = [each for each in self._growing if not _is_first(each)] if _is_first(key) else []
                if not others:
                    return
                del self._growing[others[-1]]
            growing = self._growing[key] = _Growing(unit)
        growing.add(step, value)

    def encode(self) -> Iterator[bytes]:
        """Yield the lines of a file, and release the GIL between them."""
        pace = Pace()
        for key, growing in [*self._growing.items()]:
            yield growing.encode(key)
            pace.pause()

    def go_on(self, content: bytes) -> None:
        """Begin with the curves of earlier attempts. Raises StoredError if the file cannot be used."""
        own, self._growing = self._growing, dict(_decode(content))
        for key, growing in own.items():
            for step, mean, _, _ in growing.points:
                self._add(key, growing.unit, step, mean)


def read_curves(content: bytes) -> list[Curve]:
    """Return the curves in a file. Raises StoredError if it cannot be used."""
    return [
        Curve(*key, each.unit, (*each.points,), each.last, each.replaced, each.not_finite)
        for key, each in _decode(content)
    ]


def _decode(content: bytes) -> Iterator[tuple[Key, _Growing]]:
    for line in content.splitlines():
        try:
            version, *values = json.loads(line)
            if version != _VERSION:
                raise StoredError(f"has another version than {_VERSION}, the one that this monitel reads")
            name, attributes, unit, stride, filled, last, *counts, columns = values
            steps, means, *rest = columns
            least, largest = rest or (means, means)
            rows = zip(steps, means, least, largest, strict=True)
            points = [Point(int(step), *map(_finite, numbers)) for step, *numbers in rows]
            key = str(name), tuple((str(label), each) for label, each in attributes)
            replaced, not_finite = map(int, counts)
            found = _Growing(str(unit), int(stride), int(filled), float(last), replaced, not_finite, points)
        except StoredError:
            raise
        except Exception:  # it may be damaged in any way
            raise StoredError("is damaged") from None
        yield key, found


def _finite(value: Any) -> float:
    if math.isfinite(number := float(value)):
        return number
    raise ValueError
