"""Conversion of events to points of TensorBoard charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel_tensorboard.point import Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitel import Event


class Logged(NamedTuple):
    """An event in the queue; the writer's thread converts it to points, not the training loop."""

    event: Event
    items: tuple[tuple[str, Any], ...]
    step: int | None

    @classmethod
    def now(cls, event: Event) -> Logged:
        """Return the event with a copy of its data and its step, which may change later."""
        return cls(event, tuple(event.data.items()), event.step)

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.items) + (self._histogram is not None)

    @property
    def _histogram(self) -> monitel.Histogram | None:
        """The distribution for the histogram tab; None if it is empty, because the tab cannot show that."""
        histogram = None if self.event.window is None else self.event.window.histogram
        return histogram if histogram is not None and histogram.count else None

    def points(self) -> Iterator[Point | None]:
        """Yield a point for each item; None for one that is neither a number nor text."""
        event, window = self.event, self.event.window
        rising = self.step is None or not isinstance(event, monitel.LoggedNumbers)
        for key, value in self.items:
            make = Point.text if isinstance(value, str) else Point.scalar
            try:
                walltime = event.timestamp.timestamp() if window is None else window.end_ns / 1e9
                yield make(_tag(event, key), value, None, walltime)._replace(step=self.step, rising=rising)
            except Exception:
                yield None
        if window is not None and self._histogram is not None:
            tag = _tag(event, f"{window.name}.histogram")
            yield Point(tag, self._histogram, self.step, window.end_ns / 1e9, rising=True)


def _tag(event: Event, key: str) -> str:
    if isinstance(event, monitel.LoggedNumbers):
        return _with_attributes(key, event.attributes)
    if event.name != monitel.STAT_EVENT:
        return f"{event.name}/{key}"  # TensorBoard groups by the part before the slash
    return key if event.window is None else _with_attributes(key, event.window.attributes)


def _with_attributes(key: str, attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return key
    pairs = ",".join(f"{name}={_plain(value)}" for name, value in sorted(attributes.items()))
    return f"{key}{{{pairs}}}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
