"""Windows of Stats, for handlers and exporters; and as bytes, the form in which the collecting code passes them on.

The bytes are a sequence of windows, each in the byte order of the machine: numbers of 64 bits (``_FIELDS``), and
for a histogram three integers, three floats, and for each side of zero the index of the first bucket, the number of
buckets and their counts. ``_window_c.c`` writes the same.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.stats.definition import Aggregation, StatDefinition

if TYPE_CHECKING:
    from monitel.attributes import AttributeValue
    from monitel.stats.histogram import Histogram


_new = tuple.__new__  # `_make()` takes twice as long


class Window(NamedTuple):
    """One closed window of one Stat.

    It has all numbers, whatever aggregations were requested, except ``stddev`` and ``histogram``.

    Attributes:
        definition: The arguments that the Stat was created with.
        start_ns: Start in nanoseconds since the Unix epoch: the boundary at which the window opened, the end of the
            previous window, or the Stat's creation, whichever is latest.
        end_ns: End in nanoseconds since the Unix epoch: the next boundary, or the moment at which ``max_samples``, a
            flush or the exit closed the window. Times of one Stat only rise, even if the wall clock is set back.
        count: Number of samples, at least 1.
        sum: Sum of the samples, added from first to last.
        min: The smallest sample; NaN if the first one was.
        max: The largest sample; NaN if the first one was.
        last: The last sample.
        discarded: Number of samples that ``max_samples`` kept out since the previous window.
        first_step: The training step (:func:`monitel.set_step`) at the first sample; None when never set.
        last_step: The training step at the last sample; None when never set.
        stddev: The population standard deviation of the samples, not finite if one of them is not finite; None unless
            ``STDDEV`` was requested.
        histogram: The distribution; None unless ``HISTOGRAM`` was requested.
    """

    definition: StatDefinition
    start_ns: int
    end_ns: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    first_step: int | None
    last_step: int | None
    stddev: float | None = None
    histogram: Histogram | None = None

    @property
    def name(self) -> str:
        """The Stat's name."""
        return self.definition.name

    @property
    def unit(self) -> str:
        """The Stat's unit."""
        return self.definition.unit

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The Stat's attributes."""
        return self.definition.attributes

    @property
    def mean(self) -> float:
        """``sum / count``."""
        return self.sum / self.count

    def value(self, aggregation: Aggregation) -> float:
        """Return one number of the window as a float, as torch does; the count too.

        Raises:
            ValueError: ``HISTOGRAM``, which is not a number, or a ``STDDEV`` that was not requested.
        """
        if aggregation is Aggregation.VALUE:
            return self.last
        if aggregation is Aggregation.HISTOGRAM:
            raise ValueError("HISTOGRAM is not a number: use quantile(q), or values(), which has percentiles")
        number = getattr(self, aggregation.suffix)
        if number is None:
            raise not_requested(self.name, aggregation)
        return float(number)

    def values(self) -> dict[str, float]:
        """Return the requested aggregations by the last part of their name: ``{"mean": 0.5, "p50": 0.4, ...}``.

        ``HISTOGRAM`` gives ``p50``, ``p90``, ``p95`` and ``p99``, every other aggregation one number.
        """
        found = {}
        for aggregation in self.definition.aggregations:
            if aggregation is not Aggregation.HISTOGRAM:
                found[aggregation.suffix] = self.value(aggregation)
            elif self.histogram is None:
                raise not_requested(self.name, aggregation)
            else:
                found.update(self.histogram.percentiles())
        return found

    def quantile(self, q: float) -> float:
        """Return a quantile of the finite samples (see :meth:`monitel.Histogram.quantile`): 0.5 is the median.

        Its relative error is at most ``window.histogram.relative_error``, and 0 for ``q`` 0 and 1.

        Raises:
            ValueError: ``HISTOGRAM`` was not requested, or ``q`` is not between 0 and 1.
        """
        if self.histogram is None:
            raise not_requested(self.name, Aggregation.HISTOGRAM)
        return self.histogram.quantile(q)

    def merge(self, other: Window, *, other_last: bool = True) -> Window:
        """Return the window of the samples of both, as if those of ``other`` had been added after those of this one.

        Count, ``last``, steps and the histogram's buckets are exact; sums and ``stddev`` may differ in their last
        digits. The merged window starts at the earlier start and ends at the later end.

        NaN follows the rule of one window: ``min`` and ``max`` stay NaN if this window's are. If only those of
        ``other`` are NaN, they are ignored, as the NaN that ``other`` began with would have been.

        Args:
            other: A later window, usually of the same Stat. The merged window has its definition, and a ``stddev`` and
                a ``histogram`` only if both windows have one.
            other_last: False if the samples of the two windows alternate, and the last one is in this window.

        Example:
            >>> import monitel
            >>> loss = monitel.Stat("loss", [monitel.MEAN, monitel.STDDEV], 60.0)
            >>> with monitel.testing.capture_events() as events:
            ...     for sample in (1.0, 3.0):
            ...         loss.add(sample)
            ...         loss.flush()
            >>> first, second = (event.window for event in events)
            >>> first.merge(second).values()
            {'mean': 2.0, 'stddev': 1.0}
        """
        last = other if other_last else self
        mine, its = self.histogram, other.histogram
        return other._replace(
            start_ns=min(self.start_ns, other.start_ns),
            end_ns=max(self.end_ns, other.end_ns),
            count=self.count + other.count,
            sum=self.sum + other.sum,
            min=min(self.min, other.min),  # in this order a NaN of this window stays
            max=max(self.max, other.max),
            last=last.last,
            discarded=self.discarded + other.discarded,
            first_step=self.first_step,
            last_step=last.last_step,
            stddev=_pooled_stddev(self, other),
            histogram=None if mine is None or its is None else mine.merge(its),
        )


def _pooled_stddev(one: Window, other: Window) -> float | None:
    """Return the standard deviation of all samples, by the law of total variance; inf if squares overflow."""
    if one.stddev is None or other.stddev is None:
        return None
    count = one.count + other.count
    difference = other.mean - one.mean
    squares = one.stddev * one.stddev * one.count + other.stddev * other.stddev * other.count  # ** raises on overflow
    squares += difference * difference * one.count * other.count / count
    return math.sqrt(squares / count)


def not_requested(name: str, aggregation: Aggregation) -> ValueError:
    """Return the error for an aggregation that a Stat does not collect."""
    member = f"monitel.{aggregation.name}"
    return ValueError(f"Stat {name!r} does not collect {aggregation.name}: add {member} to its aggregations")


class OpenWindow(NamedTuple):
    """The content of a window in bytes, without its definition. The window was open, or closed and not forgotten yet.

    Its numbers are those of :class:`Window`, as if closed then. With pending samples only, the count is 0.
    """

    serial: int  # of the Stat in its process
    number: int  # of the window, from 1 on; with the serial number the key of the window in its process
    closed: bool
    previous_end_ns: int  # of the Stat's previous window, or its creation, Unix; 0 if values came after the end
    start_ns: int
    end_ns: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    first_step: int | None
    last_step: int | None
    stddev: float | None
    histogram: Histogram | None


# Serial number of the Stat, number of the window, flags, end of the previous window; then the other fields of
# OpenWindow in its order, without the histogram. A step that was not set is -1.
_FIELDS = struct.Struct("=7q4d3qd")
#: Returns the key of a window in bytes: the serial number of its Stat, and its number.
key: Callable[[bytes], tuple[int, int]] = struct.Struct("=2q").unpack_from
_HISTOGRAM = struct.Struct("=3q3d")
_SIDE = struct.Struct("=2q")
_CLOSED, _STDDEV, _HAS_HISTOGRAM = 1, 2, 4


def encode(window: OpenWindow) -> bytes:
    """Return the form of one window. The C code writes the same bytes."""
    serial, number, closed, previous_end_ns, *known, first_step, last_step, stddev, histogram = window
    flags = _CLOSED * closed | _STDDEV * (stddev is not None) | _HAS_HISTOGRAM * (histogram is not None)
    steps = (-1 if step is None else step for step in (first_step, last_step))
    found = _FIELDS.pack(serial, number, flags, previous_end_ns, *known, *steps, stddev or 0.0)
    if histogram is None:
        return found
    counts = histogram.scale, histogram.zero_count, histogram.nonfinite
    parts = [found, _HISTOGRAM.pack(*counts, histogram.sum, histogram.min, histogram.max)]
    sides = (histogram.positive_offset, histogram.positive), (histogram.negative_offset, histogram.negative)
    for offset, side in sides:
        parts += [_SIDE.pack(offset, len(side)), struct.pack(f"={len(side)}Q", *side)]
    return b"".join(parts)


def decode(content: bytes) -> OpenWindow:
    """Return a window that :func:`encode`, or the C code, has written."""
    return _new(OpenWindow, _numbers(content))


def decode_closed(content: bytes, definition: StatDefinition) -> Window:
    """Return a window of a Stat with this definition."""
    return _new(Window, (definition, *_numbers(content)[4:]))


def _numbers(content: bytes) -> tuple[Any, ...]:
    # Each field has a name, because a slice and a call with 16 arguments would take twice as long.
    serial, number, flags, before, start, end, count, total, low, high, last, out, first, final, deviation = (
        _FIELDS.unpack_from(content)
    )
    closed, stddev = flags & _CLOSED == _CLOSED, deviation if flags & _STDDEV else None
    begin, until = first if first >= 0 else None, final if final >= 0 else None
    buckets = _histogram(content, _FIELDS.size) if flags & _HAS_HISTOGRAM else None
    return serial, number, closed, before, start, end, count, total, low, high, last, out, begin, until, stddev, buckets


def _histogram(content: bytes, offset: int) -> Histogram:
    from monitel.stats.histogram import Histogram  # late: see there

    scale, zeros, nonfinite, *totals = _HISTOGRAM.unpack_from(content, offset)
    offset += _HISTOGRAM.size
    fields: list[Any] = [scale, zeros]
    for _ in range(2):
        bucket, length = _SIDE.unpack_from(content, offset)
        fields += bucket, struct.unpack_from(f"={length}Q", content, offset + _SIDE.size)
        offset += _SIDE.size + 8 * length
    return Histogram(*[*fields, *totals, nonfinite])
