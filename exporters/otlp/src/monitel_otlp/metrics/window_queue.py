"""Queue of closed windows and logged numbers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from monitel.bounded_queue import BoundedQueue
from monitel.os_threads import RLock
from monitel_otlp.metrics.series import SERIES_LIMIT, LoggedNumber, SeriesTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import monitel
    from monitel_otlp.metrics.series import Series

_WINDOW_BYTES, _BUCKET_BYTES, _NUMBER_BYTES = 512, 8, 256


class Entry(NamedTuple):
    """A window in the queue.

    Attributes:
        window: The window.
        series: The series of the window.
        finite_sum: The window's sum; None if it is left out of the total.
        total_count: Number of the series' samples up to this window.
        total_sum: Sum of the series' samples up to this window.
    """

    window: monitel.Window
    series: Series
    finite_sum: float | None
    total_count: int
    total_sum: float


QueuedEntry = Entry | LoggedNumber


class WindowQueue:
    """Receives windows and logged numbers in the thread that makes them, and keeps them for the encoder.

    When the queue is full, the oldest item is dropped and counted. Totals are computed when a window is put into the
    queue, so that cumulative counts and sums are correct even if windows are dropped, and outlive the Stats.
    ``discarded`` counts the samples that ``max_samples`` kept out. ``nonfinite`` counts the windows whose sum is left
    out of the total: it is not finite, or it is negative although the series is monotonic, where a fall would look like
    a restart.

    Of several values of one number within a millisecond, which Prometheus cannot distinguish, only the last one is
    kept, as one item. ``coalesced`` counts the others.

    Args:
        limit: The most items in the queue.
        limit_bytes: The most estimated bytes in the queue.
        attributes: Attributes for every point that does not have them, e.g. the rank.
        series_limit: The most sets of attributes of one name.
        wake: Called when the queue becomes half full.
        after_ns: No point starts, or is, earlier, Unix ns.

    Attributes:
        queue: The queue.
        table: The series of windows, logged numbers and counters.
    """

    def __init__(
        self,
        limit: int,
        limit_bytes: int = 64 << 20,
        attributes: Mapping[str, str | int] | None = None,
        *,
        series_limit: int = SERIES_LIMIT,
        wake: Callable[[], object] | None = None,
        after_ns: int = 0,
    ) -> None:
        self.nonfinite = 0
        self.discarded = 0
        self.coalesced = 0
        self.queue: BoundedQueue[QueuedEntry] = BoundedQueue(limit, limit_bytes, wake=wake, evicted=_dropped)
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, which logs its last window
        self.table = SeriesTable(series_limit, attributes, self._lock, after_ns)
        self._arrived: deque[tuple[monitel.Window, Series]] = deque()
        self._putting = False
        self._newest: dict[Series, LoggedNumber] = {}

    def __len__(self) -> int:
        return len(self.queue)

    def put(self, window: monitel.Window) -> None:
        """Append a window, and update the totals of its series.

        A garbage collection in here may destruct a Stat, which puts its last window: it follows after this one, so that
        the totals rise in the order of the queue.
        """
        self._arrived.append((window, self.table.of_stat(window.definition)))
        with self._lock:
            while self._arrived and not self._putting:
                self._putting = True
                try:
                    self._put(*self._arrived.popleft())
                finally:
                    self._putting = False

    def _put(self, window: monitel.Window, series: Series) -> None:
        finite_sum = series.finite(window.sum)
        histogram = window.histogram
        size = _WINDOW_BYTES
        if histogram is not None:
            size += _BUCKET_BYTES * (len(histogram.positive) + len(histogram.negative))
        self.discarded += window.discarded
        series.latest = window
        series.count += window.count
        if not series.begin_ns or window.start_ns < series.begin_ns:
            series.begin_ns = window.start_ns
        if finite_sum is None:
            self.nonfinite += 1
        else:
            series.sum += finite_sum
            if window.count:
                series.windows += 1
                series.largest += window.max
        self.queue.put(Entry(window, series, finite_sum, series.count, series.sum), size)

    def numbers(self) -> dict[Series, LoggedNumber]:
        """Return the last number of each series of ``monitel.log()``. Takes no lock."""
        return self._newest.copy()

    def put_numbers(self, numbers: monitel.LoggedNumbers) -> None:
        """Append the numbers of one ``monitel.log()`` call."""
        attributes, time_ns = numbers.attributes, numbers.time_ns
        identity = self.table.identity(attributes)
        series_of = self.table.of_number  # may log a warning, which must not happen under the lock
        found = [(series_of(name, attributes, identity), value) for name, value in numbers.data.items()]
        with self._lock:
            for series, value in found:
                newest = self._newest.get(series)
                if newest is not None and newest.replace(value, time_ns):
                    self.coalesced += 1
                else:
                    self._newest[series] = number = LoggedNumber(series, value, time_ns, self._lock)
                    self.queue.put(number, _NUMBER_BYTES)


def _dropped(entry: QueuedEntry) -> None:
    if isinstance(entry, LoggedNumber):
        entry.take()
    elif entry.window.histogram is not None:
        entry.series.drop(entry.window.histogram)
