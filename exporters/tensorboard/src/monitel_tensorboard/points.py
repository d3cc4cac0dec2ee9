"""Points of TensorBoard's charts, made of what was recorded, and the charts that decide which points are written."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Hashable, Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

import monitel
from monitel import Event, Window
from monitel.attributes import element_of, fits_int64, typed_items
from monitel.process.failures import warn_once
from monitel_tensorboard.event_file import Point, logger

_CONFIG = "run.config"
_HYPERPARAMETERS = "_hparams_/session_start_info"  # TensorBoard's
_MARKDOWN = re.compile(r"[\\`*|]|\](?=\()|(?<![^\W_])_+|_+(?![^\W_])")  # what it takes for markup
_LONGEST = 10_000  # characters of a text to which events at the same step are added


class Recorded(NamedTuple):
    """An event in the queue, with a copy of its data and its step, which may change later."""

    event: Event
    items: tuple[tuple[str, Any], ...]
    step: int | None


class Charts:
    """The charts of a writer. One thread adds points, in the order in which they are written."""

    def __init__(self, first_step: int) -> None:
        self.dropped = self.replaced = 0
        self._before = first_step - 1
        self._charts: dict[str, tuple[Any, int, float, float]] = {}  # last value and step, highest step, last time
        self._latest: dict[Hashable, Any] = {}  # the last window of each Stat, and text of each event
        self._config: dict[str, str | bool | float] = {}

    def add(self, entry: Point | Recorded) -> list[Point]:
        """Return the points of an entry that are to be written, with their steps; count the others."""
        points: list[Point] = []
        try:
            for point in (entry,) if isinstance(entry, Point) else self._points(entry):
                placed = None if point is None else self._place(point)
                if placed is None:
                    self.dropped += 1
                else:
                    points.append(placed)
        except Exception:  # an event at a time that no clock shows
            self.dropped += 1
        return points

    def _place(self, point: Point) -> Point | None:
        new = type(point.value)
        none = point.value, self._before, -math.inf, -math.inf
        value, last, highest, walltime = self._charts.get(point.tag, none)
        if (kind := type(value)) is not new:
            message = "%r has a %s, and is given a %s: dropped (further ones are only counted)"
            warn_once(logger, message, point.tag, kind.__name__, new.__name__)
            return None
        step = point.step if point.step is not None else last if point.whole else last + 1
        if point.recorded and step < last and point.walltime < walltime:
            return None
        if step <= highest and not (step == last and (point.whole or point.value == value)):
            self.replaced += 1
            message = "%r has step %d after %d: TensorBoard hides points from it on (further ones are only counted)"
            warn_once(logger, message, point.tag, step, last)
        self._charts[point.tag] = point.value, step, max(step, highest), point.walltime
        return point._replace(step=step)

    def _points(self, recorded: Recorded) -> Iterator[Point | None]:
        """Yield a point for each number, or the texts of an event; None for a number that no point can hold."""
        event, walltime = recorded.event, recorded.event.timestamp.timestamp()
        if event.window is not None:
            yield from self._window(event.window)
        elif isinstance(event, monitel.RunConfig):  # everything that was configured so far
            self._config.update(_flat(event.config, ""))
            yield Point(_CONFIG, _table("name", "value", self._config), 0, walltime, whole=True)
            yield Point(_HYPERPARAMETERS, dict(self._config), 0, walltime, whole=True)
        elif has_scalars(event):
            attributes = event.attributes if isinstance(event, monitel.LoggedNumbers) else None
            for key, value in recorded.items:
                tag = "/".join(key.rsplit(".", 1)) if attributes is None else _tag_of(key, attributes)
                try:
                    yield Point(tag, checked_number("value", value), recorded.step, walltime, recorded=True)
                except TypeError:
                    yield None
        else:
            yield self._text(recorded, walltime)

    def _window(self, window: Window) -> Iterator[Point]:
        """Yield the scalars and the distribution of a window, merged with those before it that end at its step."""
        key = window.name, window.definition.aggregations, typed_items(window.attributes)
        before: Window | None = self._latest.get(key)
        whole = before is not None and before.last_step == window.last_step is not None
        whole = whole and window.first_step in {None, window.last_step}  # else the steps have begun again
        if before is not None and whole:
            window = before.merge(window)
        self._latest[key] = window
        values: dict[str, Any] = window.values()
        if window.histogram is not None and window.histogram.count:  # TensorBoard cannot show an empty one
            values["histogram"] = window.histogram
        for suffix, value in values.items():
            tag = _tag_of(f"{window.name}/{suffix}", window.attributes)  # grouped by the part before the slash
            yield Point(tag, value, window.last_step, window.end_ns / 1e9, recorded=True, whole=whole)

    def _text(self, recorded: Recorded, walltime: float) -> Point:
        """Return the table of an event, below those of earlier events of its name at the same step."""
        event, tag = recorded.event, f"events/{recorded.event.name}"
        text = _table(event.name, event.severity.name, dict(recorded.items))
        step, before = self._latest.get(tag, (-1, ""))
        whole = recorded.step == step and len(before) < _LONGEST  # or without one: real steps may follow
        if whole:
            text = f"{before}\n\n{text}"
        if whole or (step, recorded.step) != (None, None):  # else they are many, of a job without steps: numbered
            self._latest[tag] = recorded.step, text
        return Point(tag, text, recorded.step, walltime, recorded=True, whole=whole)


def has_scalars(event: Event) -> bool:
    """Return True if each number of the event is a point."""
    return isinstance(event, monitel.LoggedNumbers) or event.name == monitel.STAT_EVENT


def added_point(tag: Any, value: float | str, step: Any, walltime: Any) -> Point:
    """Return a point of ``add_scalar`` or ``add_text``, whose other arguments are checked."""
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str such as 'loss/train', got {given(tag)}")
    step = checked_step("global_step", step)
    now = time.time() if walltime is None else checked_number("walltime (seconds since the Unix epoch)", walltime)
    if not math.isfinite(now):  # TensorBoard's default reader shows nothing after it
        raise TypeError(f"walltime must be a finite number, got {now}")
    return Point(tag, value, step, now)


def checked_number(what: str, value: Any) -> float:
    """Return anything that ``float()`` accepts, except text, and an array of one element, as a float."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"{what} must be a real number, got {given(value)}; use add_text for text")
    try:
        return float(element_of(value))
    except Exception as error:
        raise TypeError(f"{what} must be a real number that fits in a float, got {given(value)}") from error


def checked_step(what: str, value: Any) -> int:
    """Return a step without its fraction, as torch's writer does; 0 for None."""
    try:
        step = 0 if value is None else int(value) if not isinstance(value, (str, bytes, bytearray)) else None
    except Exception:
        step = None
    if step is None:
        raise TypeError(f"{what} must be an int, a finite float or None, got {given(value)}")
    if not fits_int64(step):
        raise ValueError(f"{what} must fit in 64 bits, got {step}")
    return step


def given(value: object) -> str:
    """Return the type and the start of a wrong argument, for an error."""
    return f"{type(value).__qualname__}: {value!r:.80}"


def _tag_of(name: str, attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return name
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in attributes.items()}
    return f"{name}{{{','.join(f'{key}={value}' for key, value in sorted(shown.items()))}}}"


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
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join([f"| {_cell(left)} | {right} |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    text = escape(value if isinstance(value, str) else json.dumps(value, default=repr), quote=False)
    escaped = _MARKDOWN.sub(lambda found: "".join(f"\\{each}" for each in found[0]), text)
    return "<br>".join(" ".join(line.split()) for line in escaped.splitlines())
