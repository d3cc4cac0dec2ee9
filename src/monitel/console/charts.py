"""Charts as SVG: curves over steps, and stacked bars.

They fill the place that the page gives them. Positions are percentages and curves are stretched, so that text and lines
have the same size on each screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from monitel.console.markup import Markup, short, tag
from monitel.runs.curves import Curve, Point
from monitel.runs.values import Scalar, stem
from monitel.text import bytes_in_words, columns_of, counted, duration, number

_LINES = 6  # of a chart, at most; there are as many colours
_LARGE, _SMALL, _ALL = 360, 160, 480  # points of a line in a large and a small chart, and of all lines in a small one
_COLUMNS, _FEWER = 48, 24  # parts of a large and of a small chart that show their values to the pointer
_LONGEST_NAME, _LONGEST_LABEL = 60, 24  # columns

_LARGEST = 1e300  # of the numbers that are drawn
_FLAT = 1e-4  # the span of a constant, relative to its values
_LOG, _ZERO = 1000, 3  # the largest value by the least one, from which an axis is logarithmic, or begins at zero
_RARE, _FAR = 0.02, 3  # the share of the points that an axis does not reach, and the span with them by that without
_TIMES = (60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000)  # s between ticks
_CHARACTER = 7.2  # pixels, about

#: The colours of activities and stages, and those in which a process does nothing.
_COLOURS = {"step": 0, "data": 1, "checkpoint.save": 2, "evaluation": 3, "startup": 4, "compile": 5, "stuck": 6}
_COLOURS |= {"init": 7, "checkpoint.load": 7, "repeated": 6, "forward": 0, "optimizer": 2, "backward": 3}
_IDLE = {"sync", "down"}


def in_words(value: float, unit: str) -> str:
    """Return a value with its unit: ``0.25``, ``120 ms``, ``1.5 GiB``, ``35 token/s``."""
    if unit == "s" and 0 <= value < math.inf:
        return duration(value * 1e9)
    if unit == "By" and math.isfinite(value):
        return bytes_in_words(value)
    noun = "" if unit == "1" else short(unit.strip("{}").replace("}", ""))
    plural = "s" if unit == f"{{{noun}}}" and value != 1 and not noun.endswith("s") else ""
    return f"{number(value)} {noun}{plural}".strip()


def label(attributes: Iterable[tuple[str, Scalar]]) -> str:
    """Return the attributes of a series in words."""
    return ", ".join(f"{name}={number(each) if isinstance(each, float) else each}" for name, each in attributes)


# ---- stacked bars


def bar(parts: Sequence[tuple[str, float, str]], whole: float, words: str = "") -> Markup:
    """Return a bar of parts, each with its name, size and text, where the whole is the full width."""
    drawn, begins = list[Markup](), accumulate((length for _, length, _ in parts), initial=0.0)
    for (name, length, text), begin in zip(parts, begins, strict=False):
        x, width = _percent(begin / whole), _percent(length / whole)
        drawn.append(tag("rect", tag("title", text), class_=colour(name), x=x, width=width, height="100%"))
    return tag("svg", *drawn, class_="bar", role="img", aria_label=f"{words}{', '.join(text for *_, text in parts)}")


def colour(name: str) -> str:
    """Return the class of an activity or stage, which has its colour."""
    return f"c{_COLOURS[name]}" if name in _COLOURS else "idle" if name in _IDLE else "rest"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


# ---- curves over steps


def chart(curves: Sequence[Curve], *, large: bool = False) -> Markup:
    """Return a figure of the curves of one number; ``large`` for one as wide as the page."""
    shown, plot, notes = curves[:_LINES], "", ["no finite number was recorded"]
    lines = [_merged(each.points, _LARGE if large else min(_SMALL, _ALL // len(shown))) for each in shown]
    if any(lines):
        plotted = _Plot(shown, lines)
        plot, notes = plotted.drawn(large=large), plotted.notes
    if len(curves) > len(shown):
        notes.append(f"{len(curves) - len(shown):,} more lines")
    note = tag("p", "; ".join(notes), class_="note") if notes else ""
    return tag("figure", _caption(curves), plot, note, class_="large" if large else "")


def _caption(curves: Sequence[Curve]) -> Markup:
    """Return the name, and the last value of each line."""
    common, names, rows = stem(curves[0].name), {each.name for each in curves}, list[Markup]()
    title = tag("b", short(common if len(names) > 1 else curves[0].name, _LONGEST_NAME))
    for place, each in enumerate(curves[:_LINES]):
        value = tag("output", in_words(each.last, each.unit), class_="" if math.isfinite(each.last) else "bad")
        text = short(label(each.attributes), _LONGEST_NAME)
        if len(curves) == 1:
            return tag("figcaption", title, tag("small", text) if text else "", value)
        name = short(each.name) if len(names) > 1 else "" if text else "without attributes"
        rows.append(tag("li", tag("i", class_=f"c{place}"), tag("span", f"{name} {text}".strip()), value))
    return tag("figcaption", title, tag("ul", *rows, class_="legend"))


def _merged(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most this many points: neighbours become one with their mean, least and largest value."""
    several = max(-(-len(points) // most), 1)
    groups = (points[each : each + several] for each in range(0, len(points), several))
    return [
        each[-1]._replace(
            mean=_limited(math.fsum(point.mean / len(each) for point in each)),
            least=_limited(min(point.least for point in each)),
            largest=_limited(max(point.largest for point in each)),
        )
        for each in groups
    ]


class _Axis(NamedTuple):
    """The numbers from the position 0 to the position 1."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def around(cls, low: float, high: float, usual: float) -> _Axis:
        """Return the axis of values, none of which is at its ends, where few are below the usual one."""
        room = 0.06 * (high - low)
        if high - low <= max(_FLAT * max(abs(low), abs(high)), 1 / _LARGEST):
            room = abs(high) / 2 if abs(high) > 1 / _LARGEST else 1.0
        elif low > 0 and high / usual > _LOG:
            return cls(math.log10(low) - 0.1, math.log10(high) + 0.1, is_log=True)
        elif low > 0 and high / low > _ZERO:
            return cls(0.0, high + room)
        return cls(low - room, high + room)

    def at(self, value: float) -> float:
        """Return the position of a value; one beyond the axis is at its end."""
        value = math.log10(value) if self.is_log else value
        return min((value - self.low) / (self.high - self.low), 1.0)

    def ticks(self, most: int, unit: str = "") -> list[float]:
        """Return round numbers on the axis, about as many as given at most."""
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        step = power * next(each for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
        if self.is_log:
            step = math.ceil(least)
        elif unit == "By":
            step = 2.0 ** math.ceil(math.log2(least))
        elif unit == "s" and _TIMES[0] / 2 < least <= _TIMES[-1]:
            step = next(each for each in _TIMES if each >= least)
        found = [step * each for each in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [10.0**each for each in found] if self.is_log else found


class _Plot:
    """The lines of curves, at least one of them with a point, on common axes."""

    def __init__(self, curves: Sequence[Curve], lines: Sequence[Sequence[Point]]) -> None:
        self._curves, self._lines, self._unit = curves, lines, curves[0].unit
        points = [each for line in lines for each in line]
        steps, ends = [each.step for each in points], sorted(each.largest for each in points)
        self._first, self._last, alone = min(steps), max(steps), len({*steps}) == 1
        self._x = _Axis(self._first - alone, self._last + alone)
        self._low, usual, self._high = min(each.least for each in points), ends[int((1 - _RARE) * len(ends))], ends[-1]
        least = sorted(each.mean for each in points)[int(_RARE * len(points))]
        self._y = _Axis.around(self._low, self._high, least)
        self.notes = ["logarithmic axis"] if self._y.is_log else []
        if replaced := sum(each.replaced for each in curves):
            self.notes.append(f"steps began again: {counted(replaced, 'earlier point')} not shown")
        if not_finite := sum(each.not_finite for each in curves):
            self.notes.append(f"{counted(not_finite, 'number')} not shown: nan or infinite")
        if not self._y.is_log and 0 < _FAR * (usual - self._low) < self._high - self._low:
            self._y = _Axis.around(self._low, usual, usual)
            step = max(points, key=lambda each: each.largest).step
            self.notes.append(f"up to {in_words(self._high, self._unit)} near step {step:,}")

    def drawn(self, *, large: bool) -> Markup:
        ticks = self._y.ticks(5 if large else 4, self._unit)
        texts = [self._tick(each) for each in ticks]
        if len({*texts}) < len(texts):  # they differ in later digits
            units = {"By": (2.0**-20, " MiB"), "s": (1e3, " ms") if self._high < 1 else (1.0, " s")}
            size, unit = units.get(self._unit, (1.0, ""))
            texts = [f"{number(size * each, 20)}{unit}" for each in ticks]
        labels = {1 - self._y.at(each): text for each, text in zip(ticks, texts, strict=True)}
        left = max(map(columns_of, labels.values()), default=0) * _CHARACTER + 8
        last = ", ".join(in_words(each.last, each.unit) for each in self._curves)
        words = f"{short(self._curves[0].name)} over steps {self._first:,} to {self._last:,}, "
        words += f"from {in_words(self._low, self._unit)} to {in_words(self._high, self._unit)}, last {last}"
        return tag(
            "svg",
            *(part for place, text in labels.items() for part in _across(place, text)),
            *self._steps(),
            tag("svg", *self._paths(), viewBox="0 0 1000 1000", preserveAspectRatio="none", class_="curves"),
            *self._end(),
            *self._readings((_COLUMNS if large else _FEWER) // max(len(self._lines) // 2, 1)),
            class_="plot",
            role="img",
            aria_label=words,
            style=f"--left:{left:.0f}px",
        )

    def _tick(self, value: float) -> str:
        return in_words(value, self._unit) if value and self._unit in {"s", "By", "%"} else number(value)

    def _steps(self) -> Iterator[Markup]:
        """Yield numbers of steps below the plot, as many as have room on a small screen."""
        most = min(max(40 // (len(f"{self._last:,}") + 5), 1), 4)
        steps = [self._first] if self._first == self._last else self._x.ticks(most)
        for place, step in enumerate(each for each in steps if each == int(each)):
            at = self._x.at(step)
            anchor = "start" if at < 0.06 else "end" if at > 0.94 else "middle"  # noqa: PLR2004  near the ends
            text = f"{'' if place else 'step '}{int(step):,}"
            yield tag("text", text, x=_percent(at), y="100%", dy=18, text_anchor=anchor)

    def _paths(self) -> Iterator[Markup]:
        """Yield the bands of all lines, then the lines, each with a point at its end."""
        for place, line in enumerate(self._lines):
            if any(each.least < each.largest for each in line):
                below = [(each.step, each.least) for each in reversed(line)]
                band = self._path([*((each.step, each.largest) for each in line), *below])
                yield tag("path", d=band, class_=f"band c{place}")
        for place, line in enumerate(self._lines):
            yield tag("path", d=self._path([(each.step, each.mean) for each in line]), class_=f"line c{place}")
            if line and math.isfinite(self._curves[place].last):
                yield tag("path", d=f"{self._path([(line[-1].step, line[-1].mean)])}h0", class_=f"dot c{place}")

    def _path(self, values: Iterable[tuple[int, float]]) -> Markup:
        x, y = self._x.at, self._y.at
        places = [(round(1000 * x(step)), round(1000 * (1 - y(each)))) for step, each in values]
        moves = " ".join(f"{right - left} {below - above}" for (left, above), (right, below) in pairwise(places))
        return Markup("".join([*(f"M{left} {above}" for left, above in places[:1]), f"l{moves}" if moves else ""]))

    def _end(self) -> Iterator[Markup]:
        """Yield a line with a word where a last number cannot be drawn."""
        words = sorted({number(each.last) for each in self._curves if not math.isfinite(each.last)})
        if words:
            at = _percent(self._x.at(self._last))
            yield tag("line", x1=at, x2=at, y2="100%", class_="end")
            yield tag("text", f"then {', '.join(words)}", x=at, dx=5, dy=-3, class_="bad", text_anchor="end")

    def _readings(self, columns: int) -> Iterator[Markup]:
        """Yield columns that show the values in them to the pointer."""
        found: dict[int, dict[int, Point]] = {}
        for place, line in enumerate(self._lines):
            for each in line:
                found.setdefault(min(int(self._x.at(each.step) * columns), columns - 1), {})[place] = each
        for column, points in sorted(found.items()):
            step = max(each.step for each in points.values())
            words = [f"step {step:,}", *(self._reading(place, each) for place, each in points.items())]
            x, width = _percent(column / columns), _percent(1 / columns)
            yield tag("rect", tag("title", "\n".join(words)), x=x, width=width, height="100%", class_="reading")

    def _reading(self, place: int, point: Point) -> str:
        curve = self._curves[place]
        name = f"{short(label(curve.attributes) or curve.name, _LONGEST_LABEL)} " if len(self._curves) > 1 else ""
        mean, least, largest = (in_words(each, self._unit) for each in point[1:])
        return f"{name}{mean}{f' ({least} to {largest})' if least != largest else ''}"


def _across(place: float, text: str) -> tuple[Markup, Markup]:
    """Return a line across a plot, and the number beside it."""
    y = _percent(place)
    return tag("line", x2="100%", y1=y, y2=y), tag("text", text, x=0, y=y, dx=-7, dy=4, text_anchor="end")


def _limited(value: float) -> float:
    return min(max(value, -_LARGEST), _LARGEST)
