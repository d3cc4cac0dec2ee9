"""Conversion of events, the configuration and the ledger to points of TensorBoard charts, in the writer's thread."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.attributes import typed_items
from monitel.training.training_time import GOODPUT, NAME, goodput
from monitel_tensorboard.point import Hyperparameters, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from monitel import Event, Window
    from monitel_tensorboard.point import Charts

_CONFIG = "run.config"
_HYPERPARAMETERS = "_hparams_/session_start_info"  # TensorBoard's
_LONGEST = 10_000  # characters of a text to which events at the same step are added
_ACTIVITY = "training.activity"
_MINUTE_NS = 60 * 10**9
_SHARE = 20  # the first points are closer than a minute: each after a twentieth of the elapsed time


class Logged(NamedTuple):
    """An event in the queue, with a copy of its data and its step, which may change later."""

    event: Event
    items: tuple[tuple[str, Any], ...]
    step: int | None

    @classmethod
    def now(cls, event: Event) -> Logged:
        """Return the event as it is now."""
        return cls(event, () if event.window is not None else tuple(event.data.items()), event.step)

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.event.data) if self._has_scalars else 1

    @property
    def _has_scalars(self) -> bool:
        return isinstance(self.event, monitel.LoggedNumbers) or self.event.name == monitel.STAT_EVENT

    def points(self, charts: Charts) -> Iterator[Point | None]:
        """Yield a point for each number, or the texts of an event; None for a number that no point can hold."""
        event, walltime = self.event, self.event.timestamp.timestamp()
        if event.window is not None:
            yield from _window_points(charts, event.window)
        elif isinstance(event, monitel.RunConfig):  # everything that was configured so far
            charts.config.update(_flat(event.config, ""))
            yield Point(_CONFIG, _table("name", "value", charts.config), 0, walltime, whole=True)
            yield Point(_HYPERPARAMETERS, Hyperparameters(dict(charts.config)), 0, walltime, whole=True)
        elif self._has_scalars:
            attributes = event.attributes if isinstance(event, monitel.LoggedNumbers) else None
            for key, value in self.items:
                tag = _tag(key, attributes) if attributes is not None else "/".join(key.rsplit(".", 1))
                try:
                    yield Point.scalar(tag, value, None, walltime)._replace(step=self.step, recorded=True)
                except Exception:
                    yield None
        else:
            yield self._text(charts, walltime)

    def _text(self, charts: Charts, walltime: float) -> Point:
        """Return the table of an event, below those of earlier events of its name at the same step."""
        event, tag = self.event, f"events/{self.event.name}"
        text = _table(event.name, event.severity.name, dict(self.items))
        step, before = charts.latest.get(tag, (None, ""))
        whole = self.step is not None and step == self.step and len(before) < _LONGEST
        if whole:
            text = f"{before}\n\n{text}"
        charts.latest[tag] = self.step, text
        return Point(tag, text, self.step, walltime, recorded=True, whole=whole)


class LedgerCharts:
    """Adds the seconds of each activity so far, and the goodput, to the queue of a writer. Thread-safe.

    Args:
        put: Appends a point to the queue.
    """

    def __init__(self, put: Callable[[Point], None]) -> None:
        self._put = put
        self.start_again()

    def start_again(self) -> None:
        """Forget the last points, in a forked child."""
        self._written_ns = 0  # elapsed time at the last points

    def write_if_due(self) -> None:
        """Write points if enough time has passed since the last ones, from the first step on: it is the x axis."""
        book = monitel.ledger()
        if book is None or monitel.get_step() is None:
            return
        if book.elapsed_ns - self._written_ns >= min(_MINUTE_NS, book.elapsed_ns // _SHARE):
            self.write()

    def write(self) -> None:
        """Write points, if there has been an activity or a step."""
        book, step, walltime = monitel.ledger(), monitel.get_step(), time.time()
        self._written_ns = 0 if book is None else book.elapsed_ns
        values = {
            f"{NAME}/{counter.attributes[_ACTIVITY]}": total
            for counter, total, _ in monitel.counters()
            if counter.name == NAME and _ACTIVITY in counter.attributes
        }
        if (share := goodput()) is not None:
            values[GOODPUT[0]] = share
        for tag, value in values.items():
            self._put(Point(tag, value, step, walltime, recorded=True, whole=True))


def _window_points(charts: Charts, window: Window) -> Iterator[Point]:
    """Yield the scalars and the distribution of a window, merged with the windows before it that end at its step."""
    key = window.name, window.definition.aggregations, typed_items(window.attributes)
    before: Window | None = charts.latest.get(key)
    whole = False
    if before is not None and before.last_step == window.last_step is not None:
        window, whole = before.merge(window), True
    charts.latest[key] = window
    values: dict[str, Any] = window.values()
    if window.histogram is not None and window.histogram.count:  # TensorBoard cannot show an empty one
        values["histogram"] = window.histogram
    for suffix, value in values.items():
        tag = _tag(f"{window.name}/{suffix}", window.attributes)  # TensorBoard groups by the part before the slash
        yield Point(tag, value, window.last_step, window.end_ns / 1e9, recorded=True, whole=whole)


def _tag(name: str, attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return name
    pairs = ",".join(f"{key}={_plain(value)}" for key, value in sorted(attributes.items()))
    return f"{name}{{{pairs}}}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | bool | float]]:
    """Yield each value with its dotted name. None, lists, empty dicts, and floats that are not finite become JSON."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", json.dumps(value)


def _table(left: str, right: str, values: Mapping[str, Any]) -> str:
    """Return a table in Markdown with two columns."""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join([f"| {_cell(left)} | {right} |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return " ".join(text.split()).replace("|", "\\|")
