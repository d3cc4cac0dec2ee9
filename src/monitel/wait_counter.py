"""Wait counters: number and duration of waits in this process, by key."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, KeysView, Mapping
from sys import is_finalizing, modules
from typing import NamedTuple
from weakref import ref

from monitel import clock
from monitel.attributes import checked_text
from monitel.decoration import compiling
from monitel.process.fork import Chain, register_at_fork, unchained
from monitel.process.os_threads import RLock, get_ident


class WaitReading(NamedTuple):
    """The totals of one key.

    Attributes:
        count: Number of waits that have ended.
        total: Seconds of all waits that have ended.
        max: Seconds of the longest wait that has ended.
        active: Number of waits in progress.
        start_ns: Time at which the totals were zero, in nanoseconds since the Unix epoch; 0 if another library counts
            and does not provide it. It is not compared.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    total: float
    max: float
    active: int
    start_ns: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitReading) and self[:4] == other[:4]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:4])


_NEVER = WaitReading(0, 0.0, 0.0, 0)


class _Waits:
    """The totals of one key."""

    __slots__ = ("count", "in_flight", "key", "max_ns", "start_ns", "total_ns")

    def __init__(self, key: str) -> None:
        self.key = key
        self.in_flight: dict[int, tuple[int, int]] = {}  # by number of the wait: thread, start
        self.reset(clock.time_ns())

    def reset(self, start_ns: int) -> None:
        self.count = self.total_ns = self.max_ns = 0
        self.start_ns = start_ns

    def reading(self) -> WaitReading:
        active = len(self.in_flight)
        return WaitReading(self.count, self.total_ns / 1e9, self.max_ns / 1e9, active, self.start_ns)


_lock = RLock()
_all: Chain[_Waits] = None  # read by a forked child, where a dict may stay locked
_waits: dict[str, _Waits] = {}  # by key
_maxima: tuple[ref[WaitMaxima], ...] = ()
_foreign: Mapping[str, WaitReading] = {}  # by key; replaced as a whole
_began_ns = clock.time_ns()  # import of this module, or fork
_entered: Callable[[int, str, int, int], object] | None = None  # called with each wait that begins
_left: Callable[[int], object] | None = None  # called before it ends

_PATIENCE = 0.2  # seconds
_new = object.__new__


class WaitCounter:
    """Counts waits of one kind: ``with WaitCounter("data.loading").guard(): ...``.

    All counters of one key share its totals, in all threads. A forked child starts at zero. ``_WaitCounter`` is the
    same class under torch's name.

    Args:
        key: The kind of wait.

    Raises:
        TypeError: A key that is not a str.

    Example:
        >>> import monitel
        >>> with monitel.WaitCounter("rendezvous").guard():
        ...     pass
        >>> monitel.wait_counters()["rendezvous"].count
        1
    """

    __slots__ = ("__weakref__", "_waits")

    def __init__(self, key: str) -> None:
        global _all
        key = checked_text("WaitCounter key", key)
        with _lock:
            made = _Waits(key)
            self._waits = _waits.setdefault(key, made)
            if self._waits is made:
                _all = made, _all

    @property
    def key(self) -> str:
        """The kind of wait."""
        return self._waits.key

    def guard(self) -> _WaitCounterTracker:
        """Return a context manager that counts one wait, from entering to leaving."""
        tracker = _new(_WaitCounterTracker)
        tracker._waits, tracker._start_ns = self._waits, None
        return tracker

    def __repr__(self) -> str:
        return f"WaitCounter({self.key!r})"


class _WaitCounterTracker:
    """One wait. Entering it again before leaving ends the wait and starts another one, as in torch.

    With the GIL, no other thread and no signal handler runs between statements without a call. A lock would take a
    fifth of the time of a wait; it is for what is called, and for a CPython without the GIL.
    """

    __slots__ = ("_number", "_start_ns", "_waits")
    _waits: _Waits
    _number: int  # of the wait: its id, once it has been entered. Each call of id() is a twentieth of a wait
    _start_ns: int | None

    def __new__(cls) -> _WaitCounterTracker:  # noqa: PYI034  typing.Self is 3.11's
        raise TypeError("_WaitCounterTracker has no constructor: WaitCounter(key).guard() returns one")

    def __enter__(self) -> None:
        if "torch._dynamo" in modules and compiling():
            return
        if self._start_ns is not None:
            self.__exit__()
        number = self._number = id(self)
        thread = get_ident()
        start_ns = clock.monotonic_ns()
        self._start_ns = start_ns  # no call until the wait is there
        self._waits.in_flight[number] = thread, start_ns
        if _entered is not None:  # not earlier: _mirror() takes the waits that are there
            with _lock:  # a wait that Ctrl-C interrupts here ends when it is garbage-collected
                if (entered := _entered) is not None:  # other processes know the system's clock only
                    real_ns = start_ns if clock._injected is None else clock.SYSTEM.monotonic_ns()
                    entered(number, self._waits.key, thread, real_ns)

    def __exit__(self, _kind: object = None, _error: object = None, _traceback: object = None) -> None:
        # No *exception: to make its tuple takes as long as to read the clock.
        if self._start_ns is None:  # it has ended, or it has not begun, while torch.compile traces
            return
        number, waits, left = self._number, self._waits, _left
        in_flight = waits.in_flight
        if left is not None and number in in_flight:
            with _lock:
                left(number)
        now_ns = clock.monotonic_ns()
        start_ns, self._start_ns = self._start_ns, None  # no call until the wait is counted
        if start_ns is None:
            return  # another thread has ended it
        try:
            del in_flight[number]
        except KeyError:  # it is that of another thread of the parent process
            return
        elapsed_ns = now_ns - start_ns
        waits.count += 1
        waits.total_ns += elapsed_ns
        if elapsed_ns > waits.max_ns:
            waits.max_ns = elapsed_ns
        if _maxima or _left is not left:
            self._note(number, elapsed_ns, left)

    def _note(self, number: int, elapsed_ns: int, left: Callable[[int], object] | None) -> None:
        """Give the wait to the maxima, and to the function that _mirror() has set since ``left``, with this wait."""
        with _lock:
            if _left is not None and _left is not left:
                _left(number)
            for reference in _maxima:
                if (maxima := reference()) is not None:
                    maxima._note(self._waits.key, elapsed_ns)

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # Garbage-collected inside the wait: the wait is over. At the end of the interpreter, globals are None.
        try:
            start_ns = self._start_ns
        except AttributeError:  # torch.compile makes one without attributes
            return
        if start_ns is not None and not is_ending():
            self.__exit__()


def _exit_with_lock(tracker: _WaitCounterTracker, *_exception: object) -> None:
    with _lock:
        _exit(tracker)


if not getattr(sys, "_is_gil_enabled", lambda: True)():
    _exit = _WaitCounterTracker.__exit__
    _WaitCounterTracker.__exit__ = _exit_with_lock  # type: ignore[method-assign]


def wait_counters() -> dict[str, WaitReading]:
    """Return the totals of every key in this process, by key.

    Those that torch keeps are included, as of the last second or the last flush, if it is instrumented.

    Example:
        >>> import monitel
        >>> with monitel.WaitCounter("barrier").guard():
        ...     monitel.wait_counters()["barrier"].active
        1
    """
    with _lock:
        return {**_foreign, **dict(own_waits())}


def own_waits() -> Iterator[tuple[str, WaitReading]]:
    """Yield key and totals of each wait counter that monitel counts itself.

    Takes no lock, so that a thread that hangs stops nothing. A wait that ends at the same time may be in ``count`` of
    one reading and in ``total`` of the next one.
    """
    return ((waits.key, waits.reading()) for waits in unchained(_all))


def wait_keys() -> KeysView[str]:
    """Return the keys of the wait counters that monitel counts itself, as a view that includes later ones."""
    return _waits.keys()


def waits_in_flight() -> list[tuple[str, int, int]]:
    """Return key, thread and monotonic start of each wait in progress that monitel counts itself. Takes no lock."""
    return [(waits.key, *each) for waits in unchained(_all) for each in waits.in_flight.copy().values()]


def began_ns() -> int:
    """Return the Unix time in nanoseconds before which totals without a start were zero."""
    return _began_ns


def _mirror(entered: Callable[[int, str, int, int], object] | None, left: Callable[[int], object] | None) -> None:
    """Call functions with each wait from now on, in place of the previous ones, and with those in progress.

    ``entered`` gets a number for the wait, perhaps more than once, its key, thread and start, ``left`` the number.
    If the lock is not free in time, waits in progress are left out.
    """
    global _entered, _left
    _entered, _left = entered, left
    if entered is None or not _lock.acquire(timeout=_PATIENCE):
        return
    try:
        for waits in unchained(_all):
            for number, (thread, start_ns) in list(waits.in_flight.items()):  # a signal handler may wait
                entered(number, waits.key, thread, start_ns)
    finally:
        _lock.release()


def set_foreign_waits(readings: Mapping[str, WaitReading]) -> None:
    """Take over the totals that another library counts, such as torch in C++. A key that monitel counts has precedence.

    A forked child forgets them, because they include those of the parent.
    """
    global _foreign
    with _lock:
        for maxima in filter(None, (reference() for reference in _maxima)):
            for key in readings.keys() - _waits.keys():
                maxima._note_foreign(key, _foreign.get(key, _NEVER), readings[key])
        _foreign = readings


def foreign_waits() -> Mapping[str, WaitReading]:
    """Return the totals of every key that another library counts."""
    return _foreign


class WaitMaxima:
    """The longest wait of each key since the last reading. Each exporter uses a separate one.

    The first reading gives the longest wait since the process started. Of waits that torch counts, the longest one is
    only known if it was the only one within a second, or the longest since the process started; otherwise the key is
    omitted.

    Example:
        >>> import monitel
        >>> maxima = monitel.WaitMaxima()
        >>> with monitel.WaitCounter("queue").guard():
        ...     pass
        >>> maxima.read()["queue"] > 0, maxima.read()
        (True, {})
    """

    __slots__ = ("__weakref__", "_longest_ns")

    def __init__(self) -> None:
        global _maxima
        with _lock:
            ended = (item for item in wait_counters().items() if item[1].count)
            self._longest_ns: dict[str, float] = {key: round(each.max * 1e9) for key, each in ended}
            _maxima = (*(reference for reference in _maxima if reference() is not None), ref(self))

    def read(self) -> dict[str, float]:
        """Return the seconds of the longest wait that has ended since the last call, by key."""
        with _lock:
            longest_ns, self._longest_ns = self._longest_ns, {}
        return {key: nanoseconds / 1e9 for key, nanoseconds in longest_ns.items() if nanoseconds < math.inf}

    def _note(self, key: str, elapsed_ns: int) -> None:
        if elapsed_ns >= self._longest_ns.get(key, 0):
            self._longest_ns[key] = elapsed_ns

    def _note_foreign(self, key: str, before: WaitReading, now: WaitReading) -> None:
        """Note the longest of the waits that have ended between two readings; infinity if it is not known."""
        highest_ns = round(now.max * 1e9)
        if now.max > before.max:
            self._longest_ns[key] = highest_ns
        elif now.count == before.count + 1:
            self._note(key, round((now.total - before.total) * 1e9))
        elif now.count > before.count and self._longest_ns.get(key) != highest_ns:
            self._longest_ns[key] = math.inf


def _index() -> None:
    global _waits
    _waits = {each.key: each for each in unchained(_all)}


def _start_at_zero() -> None:
    """Reset all totals in a forked child; a wait in progress in the forking thread continues, others do not exist."""
    global _lock, _foreign, _began_ns, _entered, _left
    _lock = RLock()
    _entered = _left = None
    _foreign = {}
    _began_ns = clock.time_ns()
    _index()
    for waits in _waits.values():
        waits.reset(_began_ns)
        waits.in_flight = {number: wait for number, wait in waits.in_flight.items() if wait[0] == get_ident()}
    for reference in _maxima:
        if (maxima := reference()) is not None:
            maxima.read()


register_at_fork(after_in_child=_start_at_zero)
