"""Stat: samples in, one event per window out."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Mapping
from operator import index
from types import GeneratorType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from monitel import clock
from monitel._window import Accumulator, own_add
from monitel.aggregation import Aggregation
from monitel.event import Event, scalar, text
from monitel.handlers import log_event, raise_first
from monitel.histogram import Histogram
from monitel.late import HeldWindow, LateSamples, hold
from monitel.timer import Timer
from monitel.window import StatDefinition, Window, not_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.late import HeldWindows, LateSample
    from monitel.window import AttributeValue

_NO_LIMIT = 2**63 - 1
_KNOWN = 12  # fields of a Window after its definition
_NO_ATTRIBUTES: Mapping[str, AttributeValue] = MappingProxyType({})
_MILLISECOND_NS = 1_000_000
_SHARED: dict[tuple[Aggregation, ...], tuple[Aggregation, ...]] = {}  # 255 at most, for any number of Stats


@own_add
class Stat(Accumulator):
    """Collects samples in fixed windows and logs one event for each window that had any.

    Windows lie on multiples of ``window_size`` of the monotonic clock, so the first one is partial. A window is
    closed by the first sample after it, by ``max_samples``, by :meth:`flush`, by
    :func:`monitel.close_expired_windows`, at exit, or when the Stat is destructed.

    Args:
        name: What is measured, e.g. ``"train.loss"``.
        aggregations: What ``get()`` and the events report; duplicates do not matter.
        window_size: A :class:`~datetime.timedelta`, or a float in seconds; at least 1 ms, cut to whole
            milliseconds. ``math.inf`` never rolls over.
        max_samples: The window is closed and logged when it has so many samples; what comes until the next grid
            line is discarded, and counted in ``discarded``.
        unit: UCUM unit such as ``"s"`` or ``"By"``.
        description: What is measured, in words.
        attributes: What tells this Stat from others of its name, e.g. ``{"split": "val"}``.
        monotonic: Say True when samples are never negative, so that the sum is exported as a counter.

    Thread-safe; handlers run in the thread that closes the window, and no lock is held meanwhile. In a forked
    child the open window starts empty: the parent logs what it held. A Stat cannot be pickled or copied.

    The behaviour is torch's (``torch/csrc/monitor/counters.h``), where that is sound; ``docs/torch-monitor.md``
    lists the differences.

    Raises:
        TypeError: An argument of a wrong type: an int as window_size, a name that is no str, no Aggregations.
        ValueError: A window of less than 1 ms or nan, ``max_samples`` below 1, an empty attribute name.

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

    __slots__ = ("__weakref__", "_definition", "_held", "_last_window")

    def __init__(
        self,
        name: str,
        aggregations: Sequence[Aggregation],
        window_size: dt.timedelta | float,
        max_samples: int = _NO_LIMIT,
        *,
        unit: str = "",
        description: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
        monotonic: bool = False,
    ) -> None:
        if hasattr(self, "_definition"):  # a second __init__ is ignored, as in torch
            return
        definition = StatDefinition(
            text("Stat name", name),
            _aggregations(aggregations),
            text("unit", unit),
            text("description", description),
            checked_attributes(attributes),
            bool(monotonic),
        )
        self._last_window: Window | None = None
        self._held: HeldWindows | None = None
        self._open(
            _window_ns(window_size),
            _max_samples(max_samples),
            clock.injected(),
            Aggregation.HISTOGRAM in definition.aggregations,
            Aggregation.STDDEV in definition.aggregations,
        )
        self._definition = definition

    @property
    def name(self) -> str:
        """What is measured."""
        return self._definition.name

    @property
    def definition(self) -> StatDefinition:
        """What the Stat was made with: name, aggregations, unit, description, attributes, monotonic."""
        return self._definition

    @property
    def window_size(self) -> dt.timedelta:
        """The length of a window; ``timedelta.max`` when it never rolls over."""
        if self._window_ns == _NO_LIMIT:
            return dt.timedelta.max
        return dt.timedelta(milliseconds=self._window_ns // _MILLISECOND_NS)

    def get(self) -> dict[Aggregation, float]:
        """The aggregations of the last closed window; 0.0 each before any window was closed.

        ``HISTOGRAM`` is no number, and not in it: see :meth:`quantile`.
        """
        last = self._last_window
        numbers = (each for each in self._definition.aggregations if each is not Aggregation.HISTOGRAM)
        return {aggregation: 0.0 if last is None else last.value(aggregation) for aggregation in numbers}

    def quantile(self, q: float) -> float:
        """A quantile of the last closed window, as ``get()`` gives its other numbers; 0.0 before any was closed.

        Args:
            q: From 0 to 1; 0.5 is the median. The smallest and the largest sample, 0 and 1, are exact; the others are
                off by ``window.histogram.relative_error`` at most, and NaN where no sample was finite.

        Raises:
            ValueError: ``HISTOGRAM`` was not asked for, or ``q`` is not from 0 to 1.

        Example:
            >>> from monitel import HISTOGRAM, Stat
            >>> seconds = Stat("step.time", [HISTOGRAM], 60.0, unit="s")
            >>> for n in range(1, 101):
            ...     seconds.add(n / 100)
            >>> seconds.flush()
            >>> seconds.quantile(0.5) == 0.5, abs(seconds.quantile(0.5) / 0.5 - 1) < 0.022, seconds.quantile(1)
            (False, True, 1.0)
        """
        last = self._last_window
        if last is not None:
            return last.quantile(q)
        if Aggregation.HISTOGRAM not in self._definition.aggregations:
            raise not_asked_for(self.name, Aggregation.HISTOGRAM)
        Histogram.of(()).quantile(q)  # which checks it
        return 0.0

    def flush(self) -> None:
        """Close the open window now and log it; an empty one stays as it is.

        The same grid cell goes on collecting; its sample budget stays used. Where samples are still on a device, this
        waits for them, some seconds at most; what has not come by then is logged when it comes.
        """
        self._close()
        if held := getattr(self, "_held", None):  # a Stat that was never initialised has not even None
            held.fetch()
            self._log_held()

    def time(self) -> Timer:
        """Time a block or a function and add the seconds it took.

        Returns:
            A context manager and decorator. The sample is added also when the block raises. While torch.compile
            traces, nothing is timed.

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

    def _add_late(self, send: Callable[[LateSample], None], fetch: Callable[[], None]) -> None:
        """Add a sample whose value is to come; ``max_samples`` may keep it out, and then nothing is sent.

        What a handler raises comes out of here, as out of ``add``, and the sample is in.

        Args:
            send: Called with the sample, which it settles some time.
            fetch: Waits for the values that are to come, for a bounded time.
        """
        late, closed = self._take_place(LateSamples(self._definition, fetch))
        try:
            if late is not None:
                send(late.expect(self))
        finally:
            if closed is not None:
                self._log_closed(*closed)

    def _log_closed(self, *snapshot: Any) -> None:
        """Log a window that was just closed: called by both twins, with nothing locked."""
        if len(snapshot) == _KNOWN and not self._held:
            self._log_window(Window(self._definition, *snapshot))
            return
        known, late = snapshot[:_KNOWN], snapshot[_KNOWN:]
        hold(self, HeldWindow(self._definition, known, *(late[0] if late else (None,))))
        self._log_held()

    def _log_held(self) -> None:
        """Log the windows whose late samples have all come."""
        failures: list[BaseException] = []
        for window in self._held.complete() if self._held else ():
            try:
                self._log_window(window)
            except BaseException as error:
                failures.append(error)
        if failures:
            raise_first(failures)

    def _log_window(self, window: Window) -> None:
        if self._last_window is None or window.end_ns > self._last_window.end_ns:
            self._last_window = window
        log_event(Event.of_window(window))

    def _forget(self) -> None:
        self._held = None
        super()._forget()

    def __del__(self) -> None:
        if hasattr(self, "_definition") and self.count and not sys.is_finalizing():
            self._close()

    def __repr__(self) -> str:
        if not hasattr(self, "_definition"):
            return f"<{type(self).__name__}, not initialised>"
        names = ", ".join(aggregation.name for aggregation in self._definition.aggregations)
        return f"<{type(self).__name__} {self.name!r} [{names}] every {self.window_size}, {self.count} samples open>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {type(self).__name__} {self.name!r}: create it in the worker")


def _aggregations(aggregations: object) -> tuple[Aggregation, ...]:
    iterable = (
        (hasattr(aggregations, "__getitem__")
        and hasattr(aggregations, "__len__")
        and not isinstance(aggregations, (Mapping, str, bytes, bytearray)))
        or isinstance(aggregations, (set, frozenset, GeneratorType, map, type({}.keys()), type({}.values())))
    )
    if not iterable or isinstance(aggregations, type):
        raise TypeError(
            "aggregations must be a list of Aggregation members such as [monitel.MEAN, monitel.COUNT], "
            f"got {type(aggregations).__qualname__}"
        )
    given = set()
    for member in aggregations:  # type: ignore[attr-defined]  # an iterable by the check above
        if not isinstance(member, Aggregation):
            raise TypeError(
                f"aggregations must hold Aggregation members such as monitel.MEAN, got {member!r:.80}"
            )
        given.add(member)
    asked = tuple(member for member in Aggregation if member in given)
    return _SHARED.setdefault(asked, asked)


def _window_ns(window_size: object) -> int:
    if isinstance(window_size, dt.timedelta):
        milliseconds = window_size // dt.timedelta(milliseconds=1)
    elif isinstance(window_size, float):
        if math.isnan(window_size):
            raise ValueError("window_size must be at least 1 ms, got nan")
        milliseconds = int(max(-1.0, min(window_size * 1000, 1e300)))
    else:
        meant = f"; write {window_size}.0 for seconds" if type(window_size) is int else ""
        raise TypeError(
            "window_size must be a timedelta, or seconds as a float such as 60.0, "
            f"got {type(window_size).__qualname__}{meant}"
        )
    if milliseconds < 1:
        raise ValueError(f"window_size must be at least 1 ms, got {window_size!r}")
    window_ns = milliseconds * _MILLISECOND_NS
    return window_ns if window_ns < 2**62 else _NO_LIMIT  # 146 years: never rolls over


def _max_samples(max_samples: Any) -> int:
    kind = type(max_samples)
    to_int = index if hasattr(kind, "__index__") else int
    if isinstance(max_samples, (float, str, bytes)) or not hasattr(kind, f"__{to_int.__name__}__"):
        raise TypeError(f"max_samples must be an int, got {kind.__qualname__}: {max_samples!r:.80}")
    try:
        number = to_int(max_samples)
    except Exception as error:
        raise TypeError(f"max_samples must be an int; {kind.__qualname__} gave none: {error}") from error
    if number > _NO_LIMIT or number < -_NO_LIMIT - 1:
        raise TypeError(f"max_samples must fit in 64 bits, got {number}; leave it out for no limit")
    if number < 1:
        raise ValueError(f"max_samples must be at least 1, got {number}; leave it out for no limit")
    return number


def checked_attributes(attributes: object) -> Mapping[str, AttributeValue]:
    """A read-only copy of ``attributes``; what exporters could not send is refused."""
    if attributes is None:
        return _NO_ATTRIBUTES
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a mapping of names to values, got {type(attributes).__qualname__}")
    checked: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        name = text("attribute name", key)
        if not name:
            raise ValueError("attribute names must not be empty: Prometheus refuses such a request as a whole")
        checked[name] = scalar(f"attribute {name!r}", value)
    return MappingProxyType(checked) if checked else _NO_ATTRIBUTES
