"""State of Stats and their series up to the last window that is encoded, for a cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel.open_windows import live_stats
from monitel_otlp.black_box.cut import SeriesState, StatState, pack_state
from monitel_otlp.metrics.series import LoggedNumber
from monitel_otlp.metrics.window_row import plain_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import monitel
    from monitel_otlp.metrics.series import Series, SeriesTable
    from monitel_otlp.metrics.window_queue import QueuedEntry

#: Stats whose totals are in each cut, even if the process has stood still since their last window.
REPORTED = STEP_TIME, STAGE_TIME, DEVICE_STAGE_TIME = (
    *("training.step.duration", "training.stage.duration", "training.stage.device.duration"),
)

_FEW = 1000  # Stats


@dataclass(slots=True)
class _Encoded:
    """The encoded samples of a series. It is changed in place: a tuple for each window would cause garbage collections.

    Attributes:
        count: Number of samples.
        sum: Sum of the samples.
        windows: Number of windows.
        largest: Sum of their largest samples.
    """

    count: int = 0
    sum: float = 0.0
    windows: int = 0
    largest: float = 0.0


_NOTHING = _Encoded()


class WindowState:
    """Keeps, for each Stat, the end of its last window that is encoded, and for each series the totals up to there.

    Use it in one thread at a time.

    Args:
        table: The series of the pipeline.
    """

    def __init__(self, table: SeriesTable) -> None:
        self._table = table
        self._ends: dict[int, int] = {}  # by id of the definition
        self._ended: dict[int, monitel.StatDefinition] = {}  # the same definitions, so that their ids stay theirs
        self._most_ended = _FEW
        self._encoded: dict[Series, _Encoded] = {}
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
        if unknown := set(serials) - found.keys():
            found = {**found, **{stat._serial: stat.definition for stat in live_stats() if stat._serial in unknown}}
        self._definitions = {serial: found[serial] for serial in serials if serial in found}

    def encoded(self, entries: Iterable[QueuedEntry]) -> None:
        """Note windows that are encoded, in the order of the queue."""
        for entry in entries:
            if not isinstance(entry, LoggedNumber):
                definition = entry.window.definition
                self._ended[id(definition)] = definition
                self._ends[id(definition)] = entry.window.end_ns
                if (totals := self._encoded.get(entry.series)) is None:
                    totals = self._encoded[entry.series] = _Encoded()
                totals.count, totals.sum = entry.total_count, entry.total_sum
                if entry.window.count and entry.finite_sum is not None:
                    totals.windows += 1
                    totals.largest += entry.window.max
                self._changed = True

    def read(self, serials: tuple[int, ...], pause: Callable[[], object] = lambda: None) -> bytes:
        """Return the state of some Stats and their series for a cut; see :func:`pack_state`.

        Args:
            serials: The Stats that have a window in the cut, which :meth:`note` has received.
            pause: Called between slices of work.
        """
        if not self._changed and serials == self._serials:
            return self._state
        if len(self._ended) > self._most_ended:
            self._forget_destructed()
        numbers: dict[Series, int] = {}
        states = []
        for serial in dict.fromkeys(serials):
            if (definition := self._definitions.get(serial)) is None:
                continue  # it was destructed, and its window is encoded
            series = self._table.of_stat(definition)
            suffixes = tuple(aggregation.suffix for aggregation in definition.aggregations)
            end_ns = self._ends.get(id(definition), 0)
            states.append(StatState(serial, numbers.setdefault(series, len(numbers)), suffixes, end_ns))
            pause()
        for series in self._encoded:  # those of the summary of ``monitel run``
            if series.definition.name in REPORTED:
                numbers.setdefault(series, len(numbers))
        plain = []
        for series in numbers:
            encoded = self._encoded.get(series, _NOTHING)
            plain.append(
                SeriesState(plain_series(series), encoded.count, encoded.sum, encoded.windows, encoded.largest)
            )
            pause()
        self._state = pack_state(states, plain)
        self._changed, self._serials = False, serials
        return self._state

    def _forget_destructed(self) -> None:
        """Forget the Stats that are neither alive nor in the newest reading."""
        alive = {id(stat.definition) for stat in live_stats()}
        alive.update(map(id, self._definitions.values()))
        for key in self._ended.keys() - alive:
            del self._ended[key], self._ends[key]
        self._most_ended = _FEW + 2 * len(self._ended)  # looking at all Stats takes milliseconds if there are thousands
