"""The recording of ranges, in Python. Its twin, which says the same in C, is ``_ranges_c.c``."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from sys import modules
from typing import TYPE_CHECKING, Any

from monitel import _window, unraisable
from monitel.profiler.tracks import Track, track_of_task, track_of_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.clock import Clock

_get_step = _window.get_step
_local = threading.local()
_innermost: ContextVar[Range | None] = ContextVar("monitel.profiler.range", default=None)
_told_of_beginnings: tuple[Callable[[Range], object], ...] = ()
_told_of_ends: tuple[Callable[[Range], object], ...] = ()
_now: Callable[[], int] = time.monotonic_ns
_epoch_ns = 0


class Range:
    """A stretch of time with a name, in one thread or task.

    Attributes:
        name: What happened.
        args: What :class:`record_function` was given, unchecked.
        parent: The range around it when it began, which not every listener has heard of; None at the top.
        track: Thread and task, a :class:`Track`.
        step: :func:`monitel.get_step` when it began.
        monotonic_start_ns: When it began, on a clock that never goes back.
        monotonic_end_ns: When it ended; -1 while it runs.
    """

    __slots__ = (
        "_epoch_ns",
        "_label",
        "_told",
        "args",
        "monotonic_end_ns",
        "monotonic_start_ns",
        "name",
        "parent",
        "step",
        "track",
    )
    name: str
    args: Any
    parent: Range | None
    track: Track
    step: int | None
    monotonic_start_ns: int
    monotonic_end_ns: int
    _epoch_ns: int
    _told: tuple[Callable[[Range], object], ...]
    _label: int

    def __init__(self) -> None:
        raise TypeError(f"cannot create '{__name__.replace('_py', '_c')}.Range' instances")

    @property
    def start_ns(self) -> int:
        """When it began, in Unix ns."""
        return self._epoch_ns + self.monotonic_start_ns

    @property
    def end_ns(self) -> int | None:
        """When it ended, in Unix ns; None while it runs. Never before its start, wherever the wall clock went."""
        return None if self.monotonic_end_ns < 0 else self._epoch_ns + self.monotonic_end_ns

    def __repr__(self) -> str:
        length_ns = self.monotonic_end_ns - self.monotonic_start_ns
        return f"<Range {self.name!r} in {self.track}, {'running' if self.monotonic_end_ns < 0 else f'{length_ns} ns'}>"


def begin(label: object, name: str, args: Any) -> Range:
    """Begin a range: label, name, args; the Range."""
    self = _new(name, args, _now(), id(label))
    _innermost.set(self)
    try:
        _tell(_told_of_beginnings, self)
    except BaseException:  # the block around which it was to be will not run
        _finish(self, self.monotonic_start_ns)
        raise
    return self


def end(label: object, opened: Range | None) -> None:
    """End the innermost range of a label; the Range given is it where the context has none."""
    end_ns = _now()
    found = _innermost.get()
    while found is not None and found._label != id(label):
        found = found.parent
    if found is None:  # it was entered in another context
        found = opened
    if found is None or not found._label:
        raise AssertionError("Expected record to be set")
    _finish(found, end_ns)


def past(name: str, args: Any, start_ns: int) -> None:
    """Tell of a range that ends now: name, args, monotonic start."""
    self = _new(name, args, start_ns, 0)
    self.monotonic_end_ns = _now()
    _tell(_told_of_beginnings, self)
    _tell(self._told, self)


def current() -> Range | None:
    """The innermost range that runs in this context, or None."""
    return _running(_innermost.get())


def now() -> int:
    """The monotonic clock that ranges are on."""
    return _now()


def set_clock(clock: Clock | None, epoch_ns: int) -> None:
    """Read this clock, or the system's for None; and what to add to it for a Unix time."""
    global _now, _epoch_ns
    _now, _epoch_ns = (clock or time).monotonic_ns, epoch_ns


def tell(beginnings: tuple[Callable[[Range], object], ...], ends: tuple[Callable[[Range], object], ...]) -> None:
    """Whom to tell of beginnings, and of ends: two tuples."""
    global _told_of_beginnings, _told_of_ends
    _told_of_beginnings, _told_of_ends = beginnings, ends


def forget() -> None:
    """Forget the track of this thread: in a forked child, where it has another number."""
    _local.__dict__.clear()


def _new(name: str, args: Any, start_ns: int, label: int) -> Range:
    self = Range.__new__(Range)
    self.name = name if type(name) is str else str(name)
    self.args = args
    self.parent = _running(_innermost.get())
    self.track = _current_track()
    self.step = _get_step()
    self.monotonic_start_ns = start_ns
    self.monotonic_end_ns = -1
    self._epoch_ns = _epoch_ns
    self._told = _told_of_ends
    self._label = label  # an address, as in C: a reference would be a cycle; 0 once it has ended
    return self


def _finish(self: Range, end_ns: int) -> None:
    self.monotonic_end_ns = end_ns
    self._label = 0
    if _innermost.get() is self:
        _innermost.set(self.parent)
    _tell(self._told, self)


def _running(found: Range | None) -> Range | None:
    """The nearest that has not ended: some end while others within them go on."""
    while found is not None and not found._label:
        found = found.parent
    return found


def _tell(listeners: tuple[Callable[[Range], object], ...], self: Range) -> None:
    """Call each. Telemetry's own trouble is reported, not raised; a KeyboardInterrupt passes."""
    for told in listeners:
        try:
            told(self)
        except Exception as error:
            unraisable.report(error)


def _current_track() -> Track:
    if "asyncio.runners" in modules:  # asyncio's last part: where it is loaded, the others are complete
        loop = modules["asyncio.events"]._get_running_loop()
        task = None if loop is None else modules["asyncio.tasks"].current_task(loop)
        if task is not None:
            return track_of_task(task)
    try:
        track: Track = _local.track
    except AttributeError:
        track = _local.track = track_of_thread()
    return track
