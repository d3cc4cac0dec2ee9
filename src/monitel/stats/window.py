"""Closed windows and the definitions of their Stats, for handlers and exporters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.stats.aggregation import Aggregation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.attributes import AttributeValue
    from monitel.stats.histogram import Histogram


@dataclass(frozen=True, slots=True)
class StatDefinition:
    """The arguments that a Stat was created with; all windows of one Stat share one definition.

    Attributes:
        name: The Stat's name.
        aggregations: The requested aggregations, in the order of :class:`monitel.Aggregation`, without duplicates.
        unit: UCUM unit such as ``"s"`` or ``"By"``; ``""`` when not given.
        description: The measured quantity, in words.
        attributes: Attributes that distinguish Stats of the same name. Read-only.
        monotonic: True when samples are never negative, so that their sum never falls.
    """

    name: str
    aggregations: tuple[Aggregation, ...]
    unit: str
    description: str
    attributes: Mapping[str, AttributeValue]
    monotonic: bool

    def __hash__(self) -> int:
        return hash((self.name, self.aggregations))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.name, self.aggregations, self.unit, self.description, dict(self.attributes), self.monotonic
        return _definition, fields


def _definition(  # noqa: PLR0917  called by pickle
    name: str, aggregations: tuple[Aggregation, ...], unit: str, description: str, attributes: Any, monotonic: bool
) -> StatDefinition:
    return StatDefinition(name, aggregations, unit, description, MappingProxyType(attributes), monotonic)


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
        if self.count and other.count:
            numbers = self._merged_numbers(other)
            numbers["last"] = last.last
        else:  # pending samples only, or none of them: their numbers, to the last digit
            numbers = {name: getattr(self if self.count else other, name) for name in _NUMBERS}
        return other._replace(
            start_ns=min(self.start_ns, other.start_ns),
            end_ns=max(self.end_ns, other.end_ns),
            discarded=self.discarded + other.discarded,
            first_step=self.first_step,
            last_step=last.last_step,
            **numbers,
        )

    def _merged_numbers(self, other: Window) -> dict[str, Any]:
        both = self.histogram is not None and other.histogram is not None
        return {
            "count": self.count + other.count,
            "sum": self.sum + other.sum,
            "min": min(self.min, other.min),  # in this order a NaN of this window stays
            "max": max(self.max, other.max),
            "stddev": _pooled_stddev(self, other),
            "histogram": self.histogram.merge(other.histogram) if both else None,  # type: ignore[union-attr, arg-type]
        }


_NUMBERS = ("count", "sum", "min", "max", "last", "stddev", "histogram")


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
