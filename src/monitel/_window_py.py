"""The window that collects a Stat's samples, in Python: the twin of ``_window_c.c``, letter for letter.

What the C one does under the GIL, this one does under a lock of its own. It is re-entrant because a signal
handler may add to the Stat that it interrupted.
"""

from __future__ import annotations

import math
import time
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from monitel._recorder_py import Recorder, fields
from monitel.histogram import Histogram
from monitel.value import to_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.clock import Clock

    Snapshot = tuple[Any, ...]  # a Window's fields after its definition; if it has late samples, what is known of them

_Class = TypeVar("_Class", bound=type)

_live: WeakValueDictionary[int, Accumulator] = WeakValueDictionary()  # by serial number: in order of creation
_serial = 0
_step: int | None = None
_value_hook: Callable[[Any, Any], float | None] = to_float


class Accumulator:
    """The open window of a Stat."""

    __slots__ = (
        "_before_late",
        "_boundary",
        "_clock",
        "_count",
        "_discarded",
        "_discarded_before",
        "_first_step",
        "_last",
        "_last_step",
        "_late",
        "_late_count",
        "_late_first",
        "_lock",
        "_m2",
        "_max",
        "_max_samples",
        "_mean",
        "_min",
        "_monotonic_ns",
        "_plain",
        "_plain_room",
        "_previous_end",
        "_recorder",
        "_room",
        "_sum",
        "_window",
    )

    _clock: Clock
    _window: int
    _max_samples: int
    _boundary: int
    _room: int  # samples that the open window takes before its last one; below _count: it takes none
    _plain_room: int  # the same for the short way through add(); -1 where there is a distribution to collect
    _plain: bool
    _recorder: Recorder | None
    _mean: float | None  # Welford's, None where no standard deviation was asked for
    _m2: float
    _count: int
    _sum: float
    _discarded: int
    _discarded_before: int
    _late: Any  # what gathers the open window's samples whose values are to come, None where it has none
    _late_count: int  # how many they are: not in _count, and off _room
    _before_late: int  # _count when the last of them came
    _late_first: bool  # the first of them is the window's first sample

    _coarse = False  # reading the fine clock from Python costs no more than reading the coarse one

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Accumulator:  # noqa: PYI034  typing.Self is 3.11's
        """Make one that nothing was opened on yet, and enter it among the live ones."""
        global _serial
        self = super().__new__(cls)
        self._lock = RLock()
        self._boundary = -(2**63)  # the first add finds that nothing was opened
        self._room = self._plain_room = -1
        self._plain = True
        self._recorder = self._mean = self._late = None
        self._late_count = self._before_late = 0
        self._late_first = False
        self._count = self._window = self._max_samples = 0
        self._discarded = self._discarded_before = 0
        self._sum = self._last = 0.0
        self._min, self._max = math.inf, -math.inf
        self._first_step = self._last_step = None
        self._clock = time
        self._monotonic_ns = time.monotonic_ns
        _serial += 1
        _live[_serial] = self
        return self

    def _open(self, window: int, max_samples: int, clock: Clock | None, histogram: bool, stddev: bool) -> None:
        """Start collecting: window in ns, max_samples, a test's clock or None; a histogram, a stddev or not."""
        self._plain = not histogram and not stddev
        self._recorder = Recorder() if histogram else None
        self._mean = 0.0 if stddev else None
        self._m2 = 0.0
        if clock is not None:
            self._clock = clock
            self._monotonic_ns = clock.monotonic_ns
        now, epoch = self._read_moment()
        self._window = window
        self._max_samples = max_samples
        self._previous_end = now + epoch
        self._start_cell(now)

    @property
    def count(self) -> int:
        """Samples in the open window."""
        return self._count + self._late_count

    @property
    def max_samples(self) -> int:
        """Samples that one grid cell takes."""
        return self._max_samples

    @property
    def _window_ns(self) -> int:
        """Length of a grid cell."""
        return self._window

    @property
    def discarded(self) -> int:
        """Samples that max_samples has kept out so far, in this process."""
        return self._discarded

    def add(self, v: Any) -> None:
        """Add one sample, a real number.

        The sample that opens the next window closes the old one and logs its event, in this thread; so does the
        one that reaches max_samples. The sample is in before any handler runs: what a handler raises comes out
        of here, and nothing is lost. Thread-safe.

        Raises:
            TypeError: Not a real number; it is not counted.
        """
        if type(v) is not float:
            v = _convert(self, v)
            if v is None:
                return
        tick = self._monotonic_ns()
        entered = False
        try:  # `with self._lock` in full: acquire and release cost half of what a with statement does
            self._lock.acquire()
            entered = True
            try:
                count = self._count
                if tick < self._boundary and count < self._plain_room:
                    if not count:  # _collect(), here because a call costs as much as all of it
                        self._min = self._max = v
                        self._first_step = _step
                    elif v > self._max:
                        self._max = v
                    elif v < self._min:
                        self._min = v
                    self._count = count + 1
                    self._sum += v
                    self._last = v
                    self._last_step = _step
                    return
                closed = self._add_at_edge(tick, v)
            finally:
                self._lock.release()
        except BaseException:
            if not entered and self._lock._is_owned():  # type: ignore[attr-defined]  # Condition asks the same
                self._lock.release()  # a signal handler raised between acquire() and the inner try
            raise
        if closed:
            self._log_closed(*closed)

    add.__qualname__ = "Stat.add"  # what error messages call it

    def _add_at_edge(self, tick: int, v: float) -> Snapshot | None:
        """Take the sample that opens a grid cell, fills one, or finds it full."""
        closed = self._turn(tick) if tick >= self._boundary else None
        if self._count > self._room:
            self._discarded += 1
            return closed
        self._collect(v)
        if self._count > self._room and closed is None:  # else at its grid line: one window an add
            closed = self._close_window()
        return closed

    def _take_place(self, late: Any) -> tuple[Any, Snapshot | None]:
        """Add one sample whose value is to come, to late if it is the window's first such.

        Returns:
            What gathers the window's late samples, None where it is full, and the snapshot of the window that was
            closed, or None.
        """
        tick = self._monotonic_ns()
        with self._lock:
            closed = self._turn(tick) if tick >= self._boundary else None
            if self._count > self._room:
                self._discarded += 1
                return None, closed
            if self._late is None:
                self._late = late
                self._late_first = not self._count
            taken = self._late
            self._late_count += 1
            self._before_late = self._count
            self._room -= 1
            if self._plain:
                self._plain_room = self._room
            if self._count > self._room and closed is None:
                closed = self._close_window()
            return taken, closed

    def _collect(self, v: float) -> None:
        if self._recorder is not None:
            self._recorder.add(v)
        # From here on no call: what is in the histogram is in the window too, also for a signal handler that flushes.
        if self._mean is not None:
            from_mean = v - self._mean
            self._mean += from_mean / (self._count + 1)
            self._m2 += from_mean * (v - self._mean)
        if not self._count:
            self._min = self._max = v
            self._first_step = _step
        elif v > self._max:
            self._max = v
        elif v < self._min:
            self._min = v
        self._count += 1
        self._sum += v
        self._last = v
        self._last_step = _step

    def _turn(self, tick: int) -> Snapshot | None:
        """Close the window of a cell that is over and start the cell of ``tick``."""
        if not self._window:
            raise RuntimeError(
                "Stat.__init__() was not called: a subclass must call "
                "super().__init__(name, aggregations, window_size)"
            )
        closed = self._close_window()
        self._start_cell(tick)
        return closed

    def _start_cell(self, now: int) -> None:
        self._boundary = (now // self._window + 1) * self._window
        self._room = self._max_samples - 1
        if self._plain:
            self._plain_room = self._room

    def _read_moment(self) -> tuple[int, int]:
        """The moment, and what to add to a monotonic time to get a Unix time."""
        unix_now = self._clock.time_ns()
        now = self._clock.monotonic_ns()
        return now, unix_now - now

    def _close_window(self) -> Snapshot | None:
        """Close the open window, unless it is empty: now, or at its grid line if that has passed."""
        if not self._count and self._late is None:
            return None
        now, epoch = self._read_moment()
        taken = None if self._recorder is None else self._recorder.taken()
        if not self._count and self._late is None:  # a signal handler, or an injected clock, may have closed it
            return None
        # From here on no call, not even of max(): Python runs signal handlers at calls, and one may add or flush.
        start_ns = self._boundary - self._window + epoch
        if start_ns < self._previous_end:
            start_ns = self._previous_end
        end_ns = (now if now < self._boundary else self._boundary) + epoch
        if end_ns <= start_ns:  # times rise, whatever the wall clock does
            end_ns = start_ns + 1
        closed = (
            start_ns,
            end_ns,
            self._count,
            self._sum,
            self._min,
            self._max,
            self._last,
            self._discarded - self._discarded_before,
            self._first_step,
            self._last_step,
        )
        variance = None if self._mean is None else self._m2 / (self._count or 1)
        late = self._late
        late_count = self._late_count
        late_first = self._late_first
        late_last = self._before_late == self._count
        self._previous_end = end_ns
        self._room -= self._count
        if self._plain:
            self._plain_room = self._room
        self._discarded_before = self._discarded
        self._count = 0
        self._sum = 0.0
        self._min, self._max = math.inf, -math.inf
        self._late = None
        self._late_count = 0
        if self._mean is not None:
            self._mean = self._m2 = 0.0
        # The next window may begin.
        histogram = None if taken is None else Histogram(*fields(taken))
        stddev = None if variance is None else math.sqrt(variance)
        return *closed, stddev, histogram, *(() if late is None else ((late, late_count, late_first, late_last),))

    def _close(self) -> None:
        """Close the open window, unless it is empty, and log it."""
        with self._lock:
            closed = self._close_window()
        if closed:
            self._log_closed(*closed)

    def _close_expired(self) -> None:
        """Close the open window if its grid line has passed."""
        if self._is_expired():
            self._close()

    def _is_expired(self) -> bool:
        return (self._count > 0 or self._late is not None) and self._monotonic_ns() >= self._boundary

    def _forget(self) -> None:
        """Empty the open window without a word: in a forked child, where the parent will log it."""
        self._lock = RLock()
        self._count = self._discarded = self._discarded_before = 0
        self._sum = self._m2 = 0.0
        self._min, self._max = math.inf, -math.inf
        self._late = None
        self._late_count = 0
        self._room = self._max_samples - 1
        if self._plain:
            self._plain_room = self._room
        if self._recorder is not None:
            self._recorder = Recorder()
        if self._mean is not None:
            self._mean = 0.0

    def _log_closed(self, *snapshot: Any) -> None:
        raise NotImplementedError  # Stat's part


def _convert(self: Accumulator, v: Any) -> float | None:
    if type(v) is int:
        try:
            return float(v)
        except OverflowError:
            pass  # the hook says so
    return _value_hook(self, v)


def live() -> list[Any]:
    """Every live Stat, oldest first."""
    return [self for reference in _live.valuerefs() if (self := reference()) is not None]


def expired() -> list[Any]:
    """Every live Stat that holds samples of a cell that is over, oldest first."""
    return [self for self in live() if self._is_expired()]


def own_add(cls: _Class) -> _Class:
    """Give the class an add() of its own: CPython calls an inherited C method more slowly."""
    cls.add = Accumulator.add  # type: ignore[attr-defined]  # a class decorator knows no attributes
    return cls


def set_value_hook(hook: Callable[[Any, Any], float | None]) -> Callable[[Any, Any], float | None]:
    """Put hook(stat, value) -> float | None in place; give back the one before."""
    global _value_hook
    previous, _value_hook = _value_hook, hook
    return previous


def set_step(step: int | None) -> None:
    """Set the training step, an int, or None."""
    global _step
    _step = step


def get_step() -> int | None:
    """The training step, None when never set."""
    return _step


def untrack(_object: object) -> None:
    """Do nothing: only C can untrack an object, so that garbage collections skip it."""
