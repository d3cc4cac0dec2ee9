"""The last value of the Stat or logged number that a row shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel.blackbox.forms import Definition
    from monitel.blackbox.reading import Window

USUAL = "loss"
_MOST = 10_000  # names


class Value(NamedTuple):
    """A number with its name."""

    name: str = ""
    value: float | None = None


class Numbers:
    """The last samples of open windows, and the last logged numbers."""

    def __init__(self) -> None:
        self._stats: dict[str, None] = {}  # names, in the order in which they were seen
        self._samples: dict[str, float] = {}
        self._series: dict[str, int] = {}  # the numbers of the series that the samples are from
        self._logged: dict[str, float] = {}

    def add_stats(self, names: Iterable[str]) -> None:
        """Add the names of Stats."""
        if len(self._stats) < _MOST:
            self._stats.update(dict.fromkeys(names))

    def stat(self, show: str | None) -> str | None:
        """Return the name of the Stat that has the value; None if no Stat has it."""
        return _find(self._stats, show)

    def see(self, windows: Iterable[Window]) -> None:
        """Take over windows, in the order of their ends. Of several series with one name, the first one counts."""
        for each in windows:
            name = each.series.name
            if each.number <= self._series.get(name, each.number) and (
                name in self._samples or len(self._samples) < _MOST
            ):
                self._samples[name], self._series[name] = each.window.snapshot.last, each.number

    def log(self, numbers: Iterable[tuple[Definition, int, float]]) -> None:
        """Take over the last numbers of ``monitel.log()`` with their times. Of one name the latest counts."""
        for series, _, value in sorted(numbers, key=lambda each: each[1]):
            if series.name in self._logged or len(self._logged) < _MOST:
                self._logged[series.name] = value

    def value(self, show: str | None) -> Value:
        """Return the last value with a name.

        A Stat comes before a logged number of the same name, and an exact name before one that ends with it. While no
        window of the Stat is open, the value is its last known one.

        Args:
            show: The name; None for ``loss``, or the first name that ends with it.
        """
        wanted = USUAL if show is None else show
        for values in (self._samples, self._logged):
            if wanted in values:
                return Value(wanted, values[wanted])
        if show is None:
            for names, values in ((self._stats, self._samples), (self._logged, self._logged)):
                found = _find(names, show)
                if found is not None and found in values:
                    return Value(found, values[found])
        return Value(show or "")


def _find(names: Iterable[str], wanted: str | None) -> str | None:
    if wanted is not None:
        return wanted if wanted in names else None
    if USUAL in names:
        return USUAL
    return next((name for name in names if name.endswith(USUAL)), None)
