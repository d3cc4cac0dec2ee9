"""The open window of a Stat, in Python: the twin of ``_window_c.c``, with the same behaviour.

The C code locks only without the GIL; this code always does, re-entrantly: a signal handler may add, too.

Time is divided into intervals of the window's length, at multiples of it on the monotonic clock. An interval ends at
its boundary. It has one window, or several if a flush closed one early. If ``max_samples`` closed it, further samples
of the interval are discarded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from monitel.attributes import INT64_MIN
from monitel.clock import SYSTEM
from monitel.process.failures import pass_on
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.stats.buckets import Buckets
from monitel.stats.window import OpenWindow, encode

Closed = tuple[bytes, Any, int, bool, bool]

__all__ = ["Accumulator", "expired", "forget", "get_step", "live", "open_windows", "own_add", "set_step"]
__all__ += ["set_value_hook"]

_PATIENCE = 0.1  # seconds for which a description of all open windows waits for one of them

_Class = TypeVar("_Class", bound=type)


def to_float(stat: object, value: object) -> float:  # noqa: ARG001  other hooks need the Stat
    """Convert ``value`` to a float by torch's rules (pybind11's float caster).

    Another hook, set with ``set_value_hook``, may return None to add the sample later.
    """
    kind = type(value)  # not __class__, which a mock can set
    if issubclass(kind, float):
        return float.__float__(value)  # type: ignore[arg-type]  # mypy knows isinstance() only
    if issubclass(kind, (str, bytes)) or not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        raise TypeError(f"add() takes a real number, got {kind.__qualname__}: {value!r:.80}")
    try:
        return float(value)  # type: ignore[arg-type]  # has one of the methods that float() uses
    except Exception as error:
        pass_on()
        raise TypeError(f"add() takes a real number; converting {kind.__qualname__} failed: {error}") from error


def sample(self: object, v: object) -> object:  # noqa: ARG001
    """Return the argument of ``add()``. The C code calls it for other arguments than one by position."""
    return v


sample.__qualname__ = "Stat.add"  # for error messages

_live: WeakValueDictionary[int, Accumulator] = WeakValueDictionary()  # by serial number, in order of creation
_handed_over: dict[tuple[int, int], bytes] = {}  # windows that are closed and not forgotten, by key
_serial = 0
_process_lock = RLock()  # for the next serial number and the value hook
_step: int | None = None
_value_hook: Callable[[Any, Any], float | None] = to_float


class _Samples:
    """The samples of one window. When it closes, a new object takes the place of this one in one statement."""

    __slots__ = (
        *("before_pending", "count", "first_step", "last", "last_step", "m2", "max", "mean", "min"),
        *("pending", "pending_count", "pending_first", "sum"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.sum = self.last = 0.0
        self.min, self.max = math.inf, -math.inf
        self.mean = self.m2 = 0.0  # of Welford's algorithm
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.pending: Any = None  # collects the pending samples; None if there is none
        self.pending_count = 0  # number of pending samples: not included in count, and subtracted from the room
        self.before_pending = 0  # count when the last pending sample was added
        self.pending_first = False  # the first sample is pending


class Accumulator:
    """The open window of a Stat."""

    __slots__ = (
        *("_boundary", "_buckets", "_discarded", "_discarded_before", "_has_stddev", "_lock"),
        *("_max_samples", "_monotonic_ns", "_number", "_plain", "_previous_end", "_room", "_samples", "_serial"),
        *("_time_ns", "_window_ns"),
    )

    _monotonic_ns: Callable[[], int]
    _time_ns: Callable[[], int]
    _serial: int  # number of this Stat in the process, from 1 on
    _number: int  # of the open window, from 1 on
    _window_ns: int  # length of an interval
    _previous_end: int
    _max_samples: int
    _samples: _Samples
    _room: int  # samples that the open window takes before its last one; below the count it takes none
    _plain: bool  # neither a histogram nor a standard deviation was requested
    _buckets: Buckets | None
    _discarded: int
    _discarded_before: int

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Accumulator:  # noqa: PYI034  typing.Self is 3.11's
        """Create a Stat whose window is not open yet, and add it to the live Stats."""
        global _serial
        self = super().__new__(cls)
        self._lock = RLock()
        self._boundary = INT64_MIN  # the first add() finds that no window was opened
        self._room, self._number, self._samples = -1, 1, _Samples()
        self._plain, self._has_stddev, self._buckets = True, False, None
        self._window_ns = self._max_samples = self._discarded = self._discarded_before = 0
        self._monotonic_ns, self._time_ns = SYSTEM.monotonic_ns, SYSTEM.time_ns
        with _process_lock:
            _serial += 1
            self._serial = _serial
            _live[_serial] = self
        return self

    def _open(self, window_ns: int, max_samples: int, clock: memoryview | None, histogram: bool, stddev: bool) -> None:
        """Start collecting."""
        with self._lock:
            if self._window_ns:  # threads may call __init__() of one Stat: the first call counts
                return
            if clock is not None:
                self._monotonic_ns, self._time_ns = (partial(clock.__getitem__, index) for index in range(2))
            now, epoch = self._read_moment()
            self._plain = not histogram and not stddev
            self._buckets = Buckets() if histogram else None
            self._has_stddev = bool(stddev)
            self._window_ns = window_ns
            self._max_samples = max_samples
            self._previous_end = now + epoch
            self._start_interval(now)

    @property
    def count(self) -> int:
        """Number of samples in the open window."""
        samples = self._samples
        return samples.count + samples.pending_count

    @property
    def max_samples(self) -> int:
        """The most samples in an interval of the window's length."""
        return self._max_samples

    @property
    def discarded(self) -> int:
        """Number of samples that max_samples has kept out so far, in this process."""
        return self._discarded

    def add(self, v: Any) -> None:
        """Add one sample, a real number.

        The sample that opens the next window closes the previous one and logs its event, in this thread; so does
        the sample that reaches max_samples. The sample is added before any handler runs: an exception of a handler
        is raised from add(), and no sample is lost. Thread-safe.

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
                samples = self._samples
                count = samples.count
                if tick < self._boundary and count < self._room and self._plain:
                    if not count:  # as _collect(), whose call would cost as much as this code
                        samples.min = samples.max = v
                        samples.first_step = _step
                    elif v > samples.max:
                        samples.max = v
                    elif v < samples.min:
                        samples.min = v
                    samples.count = count + 1
                    samples.sum += v
                    samples.last = v
                    samples.last_step = _step
                    return
                closed = self._add_at_boundary(tick, v)
            finally:
                self._lock.release()
        except BaseException:
            if not entered and self._lock._is_owned():  # type: ignore[attr-defined]  # as Condition does
                self._lock.release()  # a signal handler raised between acquire() and the inner try
            raise
        if closed:
            self._log_closed(closed)

    add.__qualname__ = "Stat.add"  # for error messages

    def _add_at_boundary(self, tick: int, v: float) -> Closed | None:
        """Add the sample that starts an interval or reaches its sample limit; discard one beyond the limit."""
        closed = self._roll_over(tick) if tick >= self._boundary else None
        if self._samples.count > self._room:
            self._discarded += 1
            return closed
        self._collect(v)
        if self._samples.count > self._room and closed is None:  # one window per add(): another one at its boundary
            closed = self._close_window()
        return closed

    def _reserve(self, collector: Any) -> tuple[Any, Closed | None]:
        """Reserve a slot for a sample whose value is not known yet; ``collector`` is for the window's pending samples.

        Return the collector that the window has, None if the window is full; and the window that was closed.
        """
        tick = self._monotonic_ns()
        with self._lock:
            closed = self._roll_over(tick) if tick >= self._boundary else None
            samples = self._samples
            if samples.count > self._room:
                self._discarded += 1
                return None, closed
            if samples.pending is None:
                samples.pending = collector
                samples.pending_first = not samples.count
            samples.pending_count += 1
            samples.before_pending = samples.count
            self._room -= 1
            if samples.count > self._room and closed is None:
                closed = self._close_window()
            return samples.pending, closed

    def _collect(self, v: float) -> None:
        if self._buckets is not None:
            self._buckets.add(v)
        # No call from here on: a sample in the histogram is in the window too, even if a signal handler flushes.
        samples = self._samples
        if self._has_stddev:
            from_mean = v - samples.mean
            samples.mean += from_mean / (samples.count + 1)
            samples.m2 += from_mean * (v - samples.mean)
        if not samples.count:
            samples.min = samples.max = v
            samples.first_step = _step
        elif v > samples.max:
            samples.max = v
        elif v < samples.min:
            samples.min = v
        samples.count += 1
        samples.sum += v
        samples.last = v
        samples.last_step = _step

    def _roll_over(self, tick: int) -> Closed | None:
        """Close the window of the interval that has ended, and start the interval of ``tick``."""
        if not self._window_ns:
            raise RuntimeError(
                "Stat.__init__() was not called: a subclass must call super().__init__(name, aggregations, window_size)"
            )
        closed = self._close_window()
        if tick >= self._boundary:  # else a signal handler has added, and started it
            self._start_interval(tick)
        return closed

    def _start_interval(self, now: int) -> None:
        self._boundary = (now // self._window_ns + 1) * self._window_ns
        self._room = self._max_samples - 1

    def _close_window(self) -> Closed | None:
        """Close the open window, unless it is empty: now, or at its boundary if that has passed."""
        if not self.count:
            return None
        now, epoch = self._read_moment()
        fresh, buckets = _Samples(), None if self._buckets is None else self._buckets.taken()
        samples = self._samples
        if not samples.count and samples.pending is None:  # a signal handler may have closed it
            return None
        # No call from here on, not even of max(): Python runs signal handlers at calls, and one may add or flush.
        start_ns = self._boundary - self._window_ns + epoch
        if start_ns < self._previous_end:
            start_ns = self._previous_end
        end_ns = (now if now < self._boundary else self._boundary) + epoch
        if end_ns <= start_ns:  # times rise, even if the wall clock is set back
            end_ns = start_ns + 1
        key = self._serial, self._number
        times = self._previous_end, start_ns, end_ns
        discarded = self._discarded - self._discarded_before
        self._samples = fresh
        self._number += 1
        self._previous_end = end_ns
        self._room -= samples.count
        self._discarded_before = self._discarded
        # The next window may begin: calls are allowed again.
        content = encode(self._described(samples, (*key, True, *times), discarded, buckets))
        if samples.count:  # a window of pending samples only has no numbers yet
            _handed_over[key] = content
        is_last = samples.before_pending == samples.count
        return content, samples.pending, samples.pending_count, samples.pending_first, is_last

    def _described(
        self, samples: _Samples, head: tuple[int, int, bool, int, int, int], discarded: int, buckets: Buckets | None
    ) -> OpenWindow:
        return OpenWindow(
            *head,
            samples.count,
            samples.sum,
            samples.min,
            samples.max,
            samples.last,
            discarded,
            samples.first_step,
            samples.last_step,
            math.sqrt(samples.m2 / (samples.count or 1)) if self._has_stddev else None,
            None if buckets is None else buckets.histogram(),
        )

    def _close(self, expired: bool, /) -> Closed | None:
        """Close the open window unless it is empty; with ``expired`` only if its boundary has passed."""
        with self._lock:  # another thread may have closed it, and begun the next window
            return self._close_window() if not expired or self._is_expired() else None

    def _is_expired(self) -> bool:
        return self.count > 0 and self._monotonic_ns() >= self._boundary

    def _reset(self) -> None:
        """Discard the open window without an event. Called in a forked child: the parent logs these samples."""
        _handed_over.clear()
        self._lock = RLock()
        self._samples = _Samples()
        self._discarded = self._discarded_before = 0
        self._room = self._max_samples - 1
        self._buckets = None if self._buckets is None else Buckets()

    def _open_window(self) -> OpenWindow | None:
        """Return the open window as if it was closed now; None if it has no numbers, or if it is in use.

        The thread that uses it may be in a signal handler that waits for a lock of the caller.
        """
        now, epoch = self._read_moment()
        if not self._lock.acquire(timeout=_PATIENCE):
            return None
        try:
            if not self._samples.count:
                return None
            start_ns = max(self._boundary - self._window_ns + epoch, self._previous_end)
            end_ns = max(min(now, self._boundary) + epoch, start_ns + 1)
            head = self._serial, self._number, False, self._previous_end, start_ns, end_ns
            return self._described(self._samples, head, self._discarded - self._discarded_before, self._buckets)
        finally:
            self._lock.release()

    def _read_moment(self) -> tuple[int, int]:
        """Return the monotonic time, and the difference of the Unix time to it."""
        unix_now = self._time_ns()
        now = self._monotonic_ns()
        return now, unix_now - now

    def _log_closed(self, closed: Closed | None) -> None:
        raise NotImplementedError  # Stat implements it


def _convert(self: Accumulator, v: Any) -> float | None:
    if type(v) is int:
        try:
            return float(v)
        except OverflowError:
            pass  # the hook raises
    return _value_hook(self, v)


def live() -> list[Any]:
    """Return all live Stats, oldest first."""
    return [self for reference in _live.valuerefs() if (self := reference()) is not None]


def expired() -> list[Any]:
    """Return the live Stats that have samples of an interval that has ended, oldest first."""
    return [self for self in live() if self._is_expired()]


def open_windows() -> list[bytes]:
    """Return the windows that are handed over, and the open windows of live Stats, for monitel.stats.window."""
    described = [window for self in live() if (window := self._open_window()) is not None]
    found = _handed_over.copy()
    for window in described:  # in this order: one that is closed meanwhile is there
        if window[:2] not in found:
            found[window[:2]] = encode(window)
    return [*found.values()]


def forget(serial: int, number: int) -> None:
    """Remove a window from those that are handed over."""
    _handed_over.pop((serial, number), None)


def own_add(cls: _Class) -> _Class:
    """Set ``add`` on the class itself: CPython calls an inherited C method more slowly."""
    cls.add = Accumulator.add  # type: ignore[attr-defined]  # a class decorator knows no attributes
    return cls


def set_value_hook(hook: Callable[[Any, Any], float | None]) -> Callable[[Any, Any], float | None]:
    """Set the hook(stat, value) -> float | None that converts values, and return the previous one."""
    global _value_hook
    with _process_lock:
        previous, _value_hook = _value_hook, hook
    return previous


def set_step(step: int | None) -> None:
    """Set the training step, an int, or None."""
    global _step
    _step = step


def get_step() -> int | None:
    """Return the training step; None when never set."""
    return _step


def _renew_lock() -> None:
    global _process_lock
    _process_lock = RLock()


register_at_fork(after_in_child=_renew_lock)
