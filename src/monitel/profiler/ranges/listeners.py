"""Subscriptions to ranges, and the clock of ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.fork import register_at_fork
from monitel.os_threads import RLock
from monitel.profiler.ranges import _ranges, tracks

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.ranges._ranges import Range

    Callback = Callable[[Range], object]

now = _ranges.now  #: Return the monotonic time in ns by the clock of ranges: the system's, or a test's.
_lock = RLock()  # held briefly, while the listeners are replaced
active: tuple[Listening, ...] = ()


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


def current_range() -> Range | None:
    """Return the innermost running range of this context; None if there is none or it began without listeners."""
    return _ranges.current()


def synchronize() -> int:
    """Use the current clock (the system's, or a test's) for ranges, and compare its two readings.

    Returns:
        Nanoseconds to add to a monotonic time to get a Unix time, from the tightest of five pairs of readings.
    """
    injected = clock.injected()
    source: Any = injected or clock.SYSTEM
    tries = ((source.monotonic_ns(), source.time_ns(), source.monotonic_ns()) for _ in range(5))
    before, wall, after = min(tries, key=lambda each: each[2] - each[0])
    epoch_ns = int(wall - (before + after) // 2)
    _ranges.set_clock(injected, epoch_ns)
    return epoch_ns


def _replace(listeners: tuple[Listening, ...]) -> None:
    global active
    _ranges.set_listeners(
        tuple(each.began for each in listeners if each.began is not None),
        tuple(each.ended for each in listeners if each.ended is not None),
    )
    active = listeners


def _reset_after_fork() -> None:
    """Remove the parent's listeners in a forked child."""
    global _lock
    _lock = RLock()
    _ranges.forget_track()
    tracks.forget_tasks()
    _replace(())


register_at_fork(after_in_child=_reset_after_fork)
