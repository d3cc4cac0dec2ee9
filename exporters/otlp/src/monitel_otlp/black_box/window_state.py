"""State of Stats and their series up to the last window that is encoded, for a cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.open_windows import live_stats
from monitel_otlp.black_box.cut import SeriesState, StatState, pack_state
from monitel_otlp.metrics.logged_number import LoggedNumber
from monitel_otlp.metrics.series_state import plain_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import monitel
    from monitel_otlp.metrics.series import Series, SeriesTable
    from monitel_otlp.metrics.window_queue import QueuedEntry

#: Stats whose totals are in each cut, even if the process has stood still since their last window.
REPORTED = STEP_TIME, STAGE_TIME, DEVICE_STAGE_TIME = (
    *("training.step.duration", "training.stage.duration", "training.stage.device.duration"),
)

_NO_TOTALS = (0, 0.0, 0, 0.0)  # count and sum; number of windows, and sum of their largest samples


class WindowState:
    """Keeps, for each Stat, the end of its last window that is encoded, and for each series the totals up to there.

    Use it in one thread at a time.

    Args:
        table: The series of the pipeline.
    """

    def __init__(self, table: SeriesTable) -> None:
        self._table = table
        self._ends: dict[int, tuple[monitel.StatDefinition, int]] = {}  # by id of the definition, which it keeps alive
        self._totals: dict[Series, tuple[int, float, int, float]] = {}
        self._definitions: dict[int, monitel.StatDefinition] = {}  # of the newest reading, by serial number
        self._changed = True
        self._serials: tuple[int, ...] = ()
        self._state = b""

    def note(self, serials: tuple[int, ...]) -> None:
        """Note the Stats of a reading of open windows, before the windows in the queue are encoded.

        A Stat that is destructed later is still in the cut. One that was destructed before has passed its window to the
        queue, except if it was in the previous reading: then a handler may have the window now.

        Args:
            serials: The Stats that have a window in the reading.
        """
        found = self._definitions
        if not found.keys() >= set(serials):
            found = {**found, **{stat._serial: stat.definition for stat in live_stats()}}
        self._definitions = {serial: found[serial] for serial in serials if serial in found}

    def encoded(self, entries: Iterable[QueuedEntry]) -> None:
        """Note windows that are encoded, in the order of the queue."""
        for entry in entries:
            if not isinstance(entry, LoggedNumber):
                definition = entry.window.definition
                self._ends[id(definition)] = definition, entry.window.end_ns
                _, _, windows, largest = self._totals.get(entry.series, _NO_TOTALS)
                if entry.window.count and entry.finite_sum is not None:
                    windows, largest = windows + 1, largest + entry.window.max
                self._totals[entry.series] = entry.total_count, entry.total_sum, windows, largest
                self._changed = True

    def read(self, serials: tuple[int, ...], pause: Callable[[], object] = lambda: None) -> bytes:
        """Return the state of some Stats and their series for a cut; see :func:`pack_state`.

        Args:
            serials: The Stats that have a window in the cut, which :meth:`note` has received.
            pause: Called between slices of work.
        """
        if not self._changed and serials == self._serials:
            return self._state
        alive = {id(stat.definition) for stat in live_stats()}
        alive.update(map(id, self._definitions.values()))
        self._ends = {key: end for key, end in self._ends.items() if key in alive}
        numbers: dict[Series, int] = {}
        states = []
        for serial in dict.fromkeys(serials):
            if (definition := self._definitions.get(serial)) is None:
                continue  # it was destructed, and its window is encoded
            series = self._table.of_stat(definition)
            suffixes = tuple(aggregation.suffix for aggregation in definition.aggregations)
            _, end_ns = self._ends.get(id(definition), (None, 0))
            states.append(StatState(serial, numbers.setdefault(series, len(numbers)), suffixes, end_ns))
        for series in self._totals:  # those of the summary of ``monitel run``
            if series.definition.name in REPORTED:
                numbers.setdefault(series, len(numbers))
        plain = []
        for series in numbers:
            plain.append(SeriesState(plain_series(series), *self._totals.get(series, _NO_TOTALS)))
            pause()
        self._state = pack_state(states, plain)
        self._changed, self._serials = False, serials
        return self._state
