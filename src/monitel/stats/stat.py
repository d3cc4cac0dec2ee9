"""Stat: collects samples and logs one event per window."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from monitel import clock
from monitel.attributes import AttributeValue, checked_attributes, checked_text, checked_unit
from monitel.decoration import compiling, decorated
from monitel.event import Event
from monitel.handlers import log_event, stop_no_handler_warning
from monitel.process.failures import call_each
from monitel.stats import pending, window_sinks
from monitel.stats._window import Accumulator, forget, own_add
from monitel.stats._window_py import Closed
from monitel.stats.definition import (
    NO_LIMIT,
    Aggregation,
    StatDefinition,
    checked_aggregations,
    checked_max_samples,
    window_length_ns,
)
from monitel.stats.pending import PendingSample, PendingSamples, PendingWindow, take_resolved
from monitel.stats.window import OpenWindow, Window, decode_closed, encode, key, not_requested

Taken = tuple[int, Window]  # a closed window that the sinks have, after its number

_Function = TypeVar("_Function", bound="Callable[..., Any]")


@own_add
class Stat(Accumulator):
    """Collects samples in fixed windows and logs one event for each window with samples.

    Windows end at multiples of ``window_size`` on the monotonic clock, so the first one is shorter. A window is
    closed by the first sample after its end, by ``max_samples``, by :meth:`flush`, by
    :func:`monitel.close_expired_windows`, at exit, or when the Stat is destructed.

    Args:
        name: The measured quantity, e.g. ``"train.loss"``.
        aggregations: The numbers that ``get()`` and the events report, such as ``[MEAN, MAX]`` or ``["mean", "max"]``;
            duplicates are ignored.
        window_size: A :class:`~datetime.timedelta`, or a float in seconds; at least 1 ms, truncated to whole
            milliseconds. With ``math.inf`` a window never ends by time.
        max_samples: The window is closed and logged when it has this many samples; further samples are discarded
            until its regular end, and counted in ``discarded``.
        unit: UCUM unit such as ``"s"`` or ``"By"``. Other letters than ASCII are replaced: ``"µs"`` by ``"us"``.
        description: The measured quantity, in words.
        attributes: Attributes that distinguish Stats of the same name, e.g. ``{"split": "val"}``.
        monotonic: True if samples are never negative, so that the sum is exported as a counter.

    Thread-safe. Handlers run in the thread that closes the window, and no lock is held meanwhile. In a forked
    child the open window starts empty: the parent logs its samples. A Stat cannot be pickled or copied.

    The behaviour is that of torch (``torch/csrc/monitor/counters.h``), except for its bugs;
    ``docs/how-to/replace-torch-monitor.md`` lists the differences.

    Raises:
        TypeError: An argument of a wrong type: an int as window_size, a name that is not a str, an unknown aggregation.
        ValueError: A window of less than 1 ms or NaN, ``max_samples`` below 1, an empty attribute name.

    Example:
        >>> from datetime import timedelta
        >>> from monitel import MAX, MEAN, Stat
        >>> loss = Stat("loss", [MEAN, MAX], timedelta(seconds=60))
        >>> loss.add(0.5)
        >>> loss.add(0.25)
        >>> loss.flush()
        >>> loss.get()
        {<Aggregation.MEAN: 2>: 0.375, <Aggregation.MAX: 5>: 0.5}
    """

    __slots__ = ("__weakref__", "_definition", "_last_window", "_pending_windows")

    def __init__(
        self,
        name: str,
        aggregations: Sequence[Aggregation | str],
        window_size: dt.timedelta | float,
        max_samples: int = NO_LIMIT,
        *,
        unit: str = "",
        description: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
        monotonic: bool = False,
    ) -> None:
        if hasattr(self, "_definition"):  # a second __init__ is ignored, as in torch
            return
        definition = StatDefinition(
            checked_text("Stat name", name),
            checked_aggregations(aggregations),
            checked_unit(unit),
            checked_text("description", description),
            checked_attributes(attributes),
            bool(monotonic),
        )
        if has_histogram := Aggregation.HISTOGRAM in definition.aggregations:
            import monitel.stats.histogram  # noqa: F401  late, and before a destructor at the exit needs it
        injected = clock.injected()
        self._last_window: Window | None = None
        self._pending_windows: tuple[PendingWindow, ...] = ()
        self._open(
            window_length_ns(window_size),
            checked_max_samples(max_samples),
            None if injected is None else injected._readings,
            has_histogram,
            Aggregation.STDDEV in definition.aggregations,
        )
        self._definition = definition

    @property
    def name(self) -> str:
        """The measured quantity."""
        return self._definition.name

    @property
    def definition(self) -> StatDefinition:
        """Name, aggregations, unit, description, attributes and monotonic, as given at creation."""
        return self._definition

    @property
    def window_size(self) -> dt.timedelta:
        """The length of a window; ``timedelta.max`` if it never ends by time."""
        if self._window_ns == NO_LIMIT:
            return dt.timedelta.max
        return dt.timedelta(microseconds=self._window_ns // 1000)

    def get(self) -> dict[Aggregation, float]:
        """Return the aggregations of the last closed window; 0.0 each before any window was closed.

        ``HISTOGRAM`` is not a number, and therefore left out: see :meth:`quantile`.
        """
        stop_no_handler_warning()
        last = self._last_window
        numbers = (each for each in self._definition.aggregations if each is not Aggregation.HISTOGRAM)
        return {aggregation: 0.0 if last is None else last.value(aggregation) for aggregation in numbers}

    def quantile(self, q: float) -> float:
        """Return a quantile of the last closed window; 0.0 before any window was closed.

        Args:
            q: A number between 0 and 1; 0.5 is the median. The smallest and the largest sample, 0 and 1, are exact;
                other quantiles have a relative error of at most ``window.histogram.relative_error``, and are NaN if
                no sample was finite.

        Raises:
            ValueError: ``HISTOGRAM`` was not requested, or ``q`` is not between 0 and 1.

        Example:
            >>> from monitel import HISTOGRAM, Stat
            >>> seconds = Stat("step.time", [HISTOGRAM], 60.0, unit="s")
            >>> for n in range(1, 101):
            ...     seconds.add(n / 100)
            >>> seconds.flush()
            >>> seconds.quantile(0.5) == 0.5, abs(seconds.quantile(0.5) / 0.5 - 1) < 0.022, seconds.quantile(1)
            (False, True, 1.0)
        """
        stop_no_handler_warning()
        last = self._last_window
        if last is not None:
            return last.quantile(q)
        if Aggregation.HISTOGRAM not in self._definition.aggregations:
            raise not_requested(self.name, Aggregation.HISTOGRAM)
        from monitel.stats.histogram import Histogram  # late: see there

        Histogram.of(()).quantile(q)  # which checks it
        return 0.0

    def flush(self) -> None:
        """Close the open window now and log it, unless it is empty.

        The next window begins at once and ends at the regular end of this one; samples count towards the same
        ``max_samples``. If values are still on a device, this waits for them, a few seconds at most; a window whose
        values arrive later is logged then.
        """
        call_each(self._log_taken, self._take())
        if fetched := self._take_fetched():
            call_each(self._log_taken, fetched)

    def time(self) -> Timer:
        """Time a block or a function and add the seconds it took.

        Returns:
            A context manager and decorator. The sample is added even if the block raises. Code that torch.compile
            traces is not timed.

        Example:
            >>> import monitel
            >>> step_time = monitel.stat("step.time", unit="s")
            >>> with step_time.time():
            ...     total = sum(range(10))
            >>> @step_time.time()
            ... def train_step():
            ...     return 1
            >>> train_step(), step_time.count
            (1, 2)
        """
        return Timer(self)

    def _add_pending(self, send: Callable[[PendingSample], None], fetch: Callable[[], None]) -> None:
        """Add a sample whose value is not known yet, and ``send`` it, unless ``max_samples`` keeps it out."""
        samples, closed = self._reserve(PendingSamples(self._definition, fetch))
        try:
            if samples is not None:
                send(samples.sample(self))
        finally:
            self._log_closed(closed)

    def _log_closed(self, closed: Closed | None) -> None:
        """Log a window that was just closed, or keep it until its values are known; called without any lock."""
        call_each(self._log_taken, self._taken(closed))

    def _log_resolved(self) -> None:
        """Log the windows whose values are all known, in order."""
        call_each(self._log_taken, self._take_resolved())

    def _log_taken(self, taken: Taken) -> None:
        number, window = taken
        try:
            self._log_window(window)
        finally:
            forget(self._serial, number)

    def _take(self, expired: bool = False) -> list[Taken]:
        """Close the open window, with ``expired`` only if its boundary has passed, and return it for the handlers."""
        return self._taken(self._close(expired))

    def _take_fetched(self) -> list[Taken]:
        """Wait for the values of closed windows, a few seconds at most, and return those that have all values."""
        windows = getattr(self, "_pending_windows", ())  # absent if __init__() was not called
        for window in windows:
            if window.samples is not None and not window.resolved:
                window.samples.fetch()
        return self._take_resolved() if windows else []

    def _taken(self, closed: Closed | None) -> list[Taken]:
        """Pass a closed window to the sinks, or keep it until its values are known, and those of windows before it."""
        if closed is None:
            return []
        content, samples = closed[0], closed[1]
        number, window = key(content)[1], decode_closed(content, self._definition)
        if samples is None and not self._pending_windows:
            window_sinks.send(self._definition, window, content)
            return [(number, window)]
        held = PendingWindow(window, number, *closed)
        with pending.lock:
            self._pending_windows = (*self._pending_windows, held)  # without a call, which a signal handler interrupts
        return self._take_resolved()

    def _take_resolved(self) -> list[Taken]:
        """Take the windows whose values are all known, in order."""
        found: list[Taken] = []
        while self._pending_windows and (taken := take_resolved(self)) is not None:
            window, content = taken.window(), taken.content
            if not window.count:
                forget(self._serial, taken.number)
                continue
            if taken.samples is not None:
                content = encode(OpenWindow(self._serial, taken.number, True, 0, *window[1:]))
            window_sinks.send(self._definition, window, content)
            found.append((taken.number, window))
        return found

    def _log_window(self, window: Window) -> None:
        with pending.lock:
            if self._last_window is None or window.end_ns > self._last_window.end_ns:
                self._last_window = window
        log_event(Event.of_window(window))

    def _reset(self) -> None:
        self._pending_windows = ()
        super()._reset()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and hasattr(self, "_definition") and self.count:  # at the end, globals are None
            call_each(self._log_taken, self._take())

    def __repr__(self) -> str:
        if not hasattr(self, "_definition"):
            return f"<{type(self).__name__}, not initialised>"
        names = ", ".join(aggregation.name for aggregation in self._definition.aggregations)
        return f"<{type(self).__name__} {self.name!r} [{names}] every {self.window_size}, {self.count} samples open>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {type(self).__name__} {self.name!r}: create it in the worker")


class Timer:
    """The timer that :meth:`monitel.Stat.time` returns; for one ``with`` at a time, or as a decorator for any calls."""

    __slots__ = ("_start_ns", "_stat")

    def __init__(self, stat: Stat) -> None:
        self._stat = stat
        self._start_ns: int | None = None

    def __enter__(self) -> None:
        if not compiling():
            self._start_ns = clock.monotonic_ns()

    def __exit__(self, *_exception: object) -> None:
        if not compiling() and self._start_ns is not None:
            self._stat.add((clock.monotonic_ns() - self._start_ns) / 1e9)
            self._start_ns = None

    def __call__(self, function: _Function) -> _Function:
        """Time every call of ``function``; that of a coroutine function from its first await to its result.

        Each run of a generator, from one yield to the next, is a sample.
        """
        return decorated(function, lambda: Timer(self._stat))
