"""The recorder of ranges: their begins and ends in each context, their clock, and who receives them."""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from sys import modules
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.process.failures import report_unraisable
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock, local
from monitel.profiler.ranges import tracks
from monitel.profiler.ranges.tracks import Track, track_of_task, track_of_thread
from monitel.stats import _window

if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[["Range"], object]
    Callbacks = tuple[Callback, ...]

_get_step = _window.get_step
_local = local()
_innermost: ContextVar[Range | None] = ContextVar("monitel.profiler.range", default=None)
_now: Callable[[], int] = clock.SYSTEM.monotonic_ns
_epoch_ns = 0
_numbers = count(1)
_lock = RLock()  # held briefly, while the listeners are replaced
active: tuple[Listening, ...] = ()
_callbacks: tuple[Callbacks, Callbacks] = (), ()  # of beginnings and of ends, of the active ones; read together


class Range:
    """A named stretch of time in one thread or asyncio task.

    Attributes:
        name: Name, a str.
        args: Details as given to :class:`record_function`, unchecked.
        parent: The range around it when it began, None at the top. A listener that subscribed later than the
            parent's beginning has not received the parent.
        track: Thread and task, a :class:`Track`.
        step: :func:`monitel.get_step` when it began.
        error_type: Class name of the Exception that left it, with the module unless it is built in; None if there was
            none.
        monotonic_start_ns: Beginning, by the monotonic clock.
        monotonic_end_ns: End, by the monotonic clock; -1 while it runs.
        number: Number of ranges that this process has recorded so far, with this one. Traces call it
            ``Record function id``, and execution traces ``rf_id``.
    """

    __slots__ = (
        "_epoch_ns",
        "_label",
        "_listeners",
        "args",
        "error_type",
        "monotonic_end_ns",
        "monotonic_start_ns",
        "name",
        "number",
        "parent",
        "step",
        "track",
    )
    name: str
    args: Any
    parent: Range | None
    track: Track
    step: int | None
    error_type: str | None
    monotonic_start_ns: int
    monotonic_end_ns: int
    number: int
    _epoch_ns: int
    _listeners: Callbacks
    _label: int

    def __init__(self) -> None:
        raise TypeError(f"cannot create '{__name__}.Range' instances")

    @property
    def start_ns(self) -> int:
        """Beginning, in Unix ns."""
        return self._epoch_ns + self.monotonic_start_ns

    @property
    def end_ns(self) -> int | None:
        """End, in Unix ns; None while it runs. Never before the beginning, even if the wall clock was set back."""
        return None if self.monotonic_end_ns < 0 else self._epoch_ns + self.monotonic_end_ns

    def __repr__(self) -> str:
        length_ns = self.monotonic_end_ns - self.monotonic_start_ns
        return f"<Range {self.name!r} in {self.track}, {'running' if self.monotonic_end_ns < 0 else f'{length_ns} ns'}>"


def begin(label: object, name: str, args: Any) -> Range:
    """Begin a range with this label, name and args; return the Range."""
    beginnings, ends = _callbacks
    self = _new(name, args, _now(), id(label), ends)
    try:
        _innermost.set(self)
        _notify(beginnings, self)
    except BaseException:  # the block that the range was to enclose will not run
        _finish(self, self.monotonic_start_ns)
        raise
    return self


def end(label: object, opened: Range | None, error_type: str | None = None) -> None:
    """End the innermost range of a label, or the given Range if the context has none; an error's type is kept."""
    end_ns = _now()
    found = _innermost.get()
    while found is not None and found._label != id(label):
        found = found.parent
    if found is None:  # the range began in another context
        found = opened
    if found is None or not found._label:
        raise AssertionError("Expected record to be set")
    found.error_type = error_type
    _finish(found, end_ns)


def record_past(name: str, args: Any, start_ns: int, end_ns: int, track: Track | None) -> None:
    """Record a range that has ended, in a track (None: this one), within the running range that began before it."""
    beginnings, ends = _callbacks
    self = _new(name, args, start_ns, 0, ends)
    while self.parent is not None and (not self.parent._label or self.parent.monotonic_start_ns > start_ns):
        self.parent = self.parent.parent
    if track is not None:
        self.track = track
    self.monotonic_end_ns = end_ns
    _notify(beginnings, self)
    _notify(ends, self)


def current_range() -> Range | None:
    """Return the innermost running range of this context; None if there is none or it began without listeners."""
    return _running(_innermost.get())


def now() -> int:
    """Return the monotonic time in ns by the clock of ranges."""
    return _now()


class Listening:
    """A subscription, as :func:`listen` returns it. Leaving ``with listening:`` closes it."""

    __slots__ = ("began", "ended")

    def __init__(self, began: Callback | None, ended: Callback | None) -> None:
        self.began = began
        self.ended = ended

    def close(self) -> None:
        """Stop receiving the beginnings of ranges. Idempotent."""
        with _lock:
            _replace(tuple(other for other in active if other is not self))

    def __enter__(self) -> Listening:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def listen(*, began: Callback | None = None, ended: Callback | None = None) -> Listening:
    """Call ``began`` and ``ended`` with every range that begins from now on, in all threads.

    The docstring of :mod:`monitel.profiler.ranges` states what callbacks can rely on. This call compares the wall clock
    with the monotonic clock. A listener that runs for days calls :func:`synchronize` from time to time, so that Unix
    times stay exact.

    Example:
        >>> from monitel.profiler import ranges, record_function
        >>> names = []
        >>> with ranges.listen(ended=lambda ended: names.append(ended.name)):
        ...     with record_function("step"), record_function("forward"):
        ...         pass
        >>> names
        ['forward', 'step']
    """
    listening = Listening(began, ended)
    with _lock:
        synchronize()
        _replace((*active, listening))
    return listening


def synchronize() -> int:
    """Use the current clock (the system's, or a test's) for ranges, and compare its two readings.

    Returns:
        Nanoseconds to add to a monotonic time to get a Unix time, from the tightest of five pairs of readings.
    """
    global _now, _epoch_ns
    source = clock.injected() or clock.SYSTEM
    tries = ((source.monotonic_ns(), source.time_ns(), source.monotonic_ns()) for _ in range(5))
    before, wall, after = min(tries, key=lambda each: each[2] - each[0])
    _now, _epoch_ns = source.monotonic_ns, int(wall - (before + after) // 2)
    return _epoch_ns


def _new(name: str, args: Any, start_ns: int, label: int, listeners: Callbacks) -> Range:
    self = Range.__new__(Range)
    self.name = name if type(name) is str else str(name)
    self.args = args
    self.parent = _running(_innermost.get())
    self.track = _current_track()
    self.step = _get_step()
    self.error_type = None
    self.monotonic_start_ns = start_ns
    self.monotonic_end_ns = -1
    self.number = next(_numbers)
    self._epoch_ns = _epoch_ns
    self._listeners = listeners
    self._label = label  # an address, as in C, because a reference would be a cycle; 0 after the end
    return self


def _finish(self: Range, end_ns: int) -> None:
    self.monotonic_end_ns = end_ns
    self._label = 0
    if _innermost.get() is self:
        _innermost.set(self.parent)
    _notify(self._listeners, self)


def _running(found: Range | None) -> Range | None:
    """Return the nearest range that has not ended: a range can end before the ranges within it."""
    while found is not None and not found._label:
        found = found.parent
    return found


def _notify(listeners: Callbacks, self: Range) -> None:
    """Call each listener. Report an Exception as unraisable; let a KeyboardInterrupt propagate."""
    for listener in listeners:
        try:
            listener(self)
        except Exception as error:
            report_unraisable(error)


def _current_track() -> Track:
    if "asyncio.runners" in modules:  # asyncio's last module: if it is loaded, the others are complete
        loop = modules["asyncio.events"]._get_running_loop()
        task = None if loop is None else modules["asyncio.tasks"].current_task(loop)
        if task is not None:
            return track_of_task(task)
    try:
        track: Track = _local.track
    except AttributeError:
        track = _local.track = track_of_thread()
    return track


def _replace(listeners: tuple[Listening, ...]) -> None:
    global active, _callbacks
    beginnings = tuple(each.began for each in listeners if each.began is not None)
    _callbacks = beginnings, tuple(each.ended for each in listeners if each.ended is not None)
    active = listeners


def _reset_after_fork() -> None:
    """Remove the parent's listeners in a forked child, where a thread and a task have another native id."""
    global _lock
    _lock = RLock()
    _local.__dict__.clear()
    tracks.forget_tasks()
    _replace(())


register_at_fork(after_in_child=_reset_after_fork)
