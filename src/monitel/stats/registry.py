"""Registry of Stats by name, and operations on all live Stats."""

from __future__ import annotations

import atexit
import datetime as dt
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from monitel.attributes import AttributeValue, checked_attributes, checked_text, typed_items
from monitel.process.exit import finalize_with_children, without_interruption
from monitel.process.failures import call, call_each, enable_loggers
from monitel.process.fork import Chain, register_at_fork, unchained
from monitel.process.os_threads import RLock
from monitel.stats import _window, before_flush
from monitel.stats.definition import TORCHS, Aggregation
from monitel.stats.stat import Stat, Taken

_Item = TypeVar("_Item")
_DEFAULTS: dict[str, Any] = {"aggregations": TORCHS, "window_size": dt.timedelta(seconds=60)}
_FINALIZER_PRIORITY = 100  # the highest priority is called first; multiprocessing.Queue closes at 10
_SLICE_NS = 500_000  # the GIL is held so long at most, if the collector of garbage does not run

_lock = RLock()
_stats: dict[Hashable, Stat] = {}
_items: Chain[tuple[Hashable, Stat]] = None  # of _stats, for a forked child: see counter._all


def stat(
    name: str,
    aggregations: Sequence[Aggregation | str] | None = None,
    window_size: dt.timedelta | float | None = None,
    max_samples: int | None = None,
    *,
    unit: str | None = None,
    description: str | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    monotonic: bool | None = None,
) -> Stat:
    """Return the Stat with this name and these attributes; create it at the first call and keep it alive.

    Args:
        name: All arguments are those of :class:`monitel.Stat`. Omitted arguments have the defaults at the first call
            (torch's six aggregations, 60 s), and the Stat's values later.
        aggregations: The numbers that ``get()`` and the events report, such as ``["mean", "max"]``.
        window_size: A timedelta, or a float in seconds.
        max_samples: The most samples of a window.
        unit: UCUM unit.
        description: The measured quantity, in words.
        attributes: Part of the Stat's identity.
        monotonic: True if samples are never negative.

    Returns:
        The same object for the same name and attributes; after a fork, the child has a separate one.

    Raises:
        TypeError: As :class:`monitel.Stat`.
        ValueError: As :class:`monitel.Stat`; or an argument differs from the one that the Stat was created with.

    Example:
        >>> import monitel
        >>> monitel.stat("loss", attributes={"split": "val"}).add(0.5)
        >>> monitel.stat("loss", attributes={"split": "val"}).count
        1
    """
    global _items
    asked = {
        "aggregations": aggregations,
        "window_size": window_size,
        "max_samples": max_samples,
        "unit": unit,
        "description": description,
        "monotonic": monotonic,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    name, checked = checked_text("Stat name", name), checked_attributes(attributes)
    identity = (name, typed_items(checked)) if checked else name
    known = _stats.get(identity)
    if known is None or given:
        made = Stat(name, **{**_DEFAULTS, **given}, attributes=checked)  # checks every argument
        with _lock:
            known = _stats.setdefault(identity, made)
            if known is made:
                _items = (identity, made), _items
        for key in given:
            if (was := _setting(known, key)) != (wanted := _setting(made, key)):
                raise ValueError(f"Stat {name!r} was created with {key}={was!r}, not {wanted!r}")
    return known


def _setting(stat: Stat, key: str) -> object:
    return getattr(stat if key in {"window_size", "max_samples"} else stat.definition, key)


def flush() -> None:
    """Close the open window of every live Stat and log it, oldest Stat first; the handlers run when all are closed.

    Before that, sources such as :func:`monitel.torch.instrument` log the events that they have queued. Every Stat is
    flushed, even if a handler raises; then the first exception is raised.

    Example:
        >>> import monitel
        >>> monitel.stat("example.loss", ["mean"]).add(0.5)
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.flush()
        >>> events[0].data
        {'example.loss.mean': 0.5}
    """
    taken = TakenWindows()
    call_each(call, (before_flush.run, taken.take, taken.fetch, taken.log))


def close_expired_windows(pause: Callable[[], object] | None = None) -> int:
    """Close expired windows, so that idle Stats are reported on time, after sources have logged their queued events.

    Exporters call this every few seconds in a thread; handlers then run in that thread.

    Args:
        pause: Called after each 0.5 ms of work, for a thread that must not delay others. The time is CPU time of this
            thread, so that time in which other threads have the GIL does not count.

    Returns:
        Number of closed windows.
    """
    enable_loggers()
    taken = TakenWindows(expired=True, pause=pause)
    call_each(call, (before_flush.run, taken.take, taken.log))
    return len(taken.stats)


class TakenWindows:
    """Windows of Stats that are closed and passed to the sinks, before an event handler can be slow or end the process.

    Every Stat is taken and logged, even if one raises; then the first exception is raised.
    """

    def __init__(self, *, expired: bool = False, pause: Callable[[], object] | None = None) -> None:
        self.stats: list[Stat] = []
        self._process = os.getpid()
        self._expired = expired
        self._pauses = iter if pause is None else partial(_with_pauses, pause)
        self._taken: list[tuple[Stat, Taken]] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def take(self) -> None:
        """Close the open windows of all live Stats, or those that have expired, and pass them to the sinks."""
        self.stats = _window.expired() if self._expired else _window.live()
        self._add(lambda stat: stat._take(self._expired))

    def fetch(self) -> None:
        """Wait for the values of closed windows, a few seconds at most for each Stat, and pass them to the sinks."""
        self._add(Stat._take_fetched)

    def _add(self, step: Callable[[Stat], list[Taken]]) -> None:
        def add(stat: Stat) -> None:
            for each in step(stat):
                self._taken.append((stat, each))

        call_each(add, self._pauses(self.stats))

    def log(self) -> None:
        """Call the event handlers, Stat by Stat, oldest first."""
        self._taken.sort(key=lambda pair: pair[0]._serial)
        call_each(self._log, self._pauses(self._taken))

    def _log(self, pair: tuple[Stat, Taken]) -> None:
        if os.getpid() == self._process:  # else a handler has forked, and the parent logs these windows
            pair[0]._log_taken(pair[1])


def _with_pauses(pause: Callable[[], object], items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield the items; call ``pause`` between slices of work."""
    end = _work_ns() + _SLICE_NS
    for item in items:
        yield item
        if _work_ns() >= end:
            pause()
            end = _work_ns() + _SLICE_NS


_work_ns = getattr(time, "thread_time_ns", time.monotonic_ns)  # WebAssembly has no time of threads


def _start_empty() -> None:
    """Empty all windows in a forked child: the parent logs their samples, and a thread of it may have held the lock."""
    global _lock, _stats
    _lock = RLock()
    _stats = dict(unchained(_items))
    for each in _window.live():
        each._reset()


register_at_fork(after_in_child=_start_empty)
# Exporters register later, and flush before they shut down: atexit runs last in, first out.
atexit.register(without_interruption(raises=False)(flush))
finalize_with_children(flush, _FINALIZER_PRIORITY)
