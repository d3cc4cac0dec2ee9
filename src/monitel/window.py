"""What is known of a closed window, for handlers and exporters."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monitel._window import untrack
from monitel.aggregation import Aggregation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.histogram import Histogram

    AttributeValue = str | bool | int | float


@dataclass(frozen=True, slots=True)
class StatDefinition:
    """What a Stat was made with; all windows of one Stat share one definition.

    Attributes:
        name: The Stat's name.
        aggregations: What was asked for, in the order of :class:`monitel.Aggregation`, without duplicates.
        unit: UCUM unit such as ``"s"`` or ``"By"``; ``""`` when not given.
        description: What is measured, in words.
        attributes: What tells this Stat from others of its name. Read-only.
        monotonic: True when samples are never negative, so that their sum only rises.
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


@dataclass(frozen=True, slots=True)
class Window:
    """One closed window of one Stat: everything but distributions, whatever aggregations were asked for.

    Attributes:
        definition: What the Stat was made with.
        start_ns: Start in nanoseconds since the Unix epoch: the grid line, or the end of the window before, or
            the Stat's construction, whichever is latest.
        end_ns: End in nanoseconds since the Unix epoch: the grid line, or the moment at which ``max_samples``, a
            flush or the exit closed the window. Times of one Stat only rise, also when the wall clock is set back.
        count: Samples in the window, at least 1.
        sum: The samples added up, from first to last.
        min: The smallest sample; NaN if the first one was.
        max: The largest sample; NaN if the first one was.
        last: The last sample.
        discarded: Samples that ``max_samples`` kept out since the window before.
        first_step: :func:`monitel.set_step` as it was at the first sample, None when never set.
        last_step: The same at the last sample.
        stddev: The standard deviation of the samples as a population, not finite if one of them is not; None unless
            ``STDDEV`` was asked for.
        histogram: The distribution; None unless ``HISTOGRAM`` was asked for.
    """

    definition: StatDefinition
    start_ns: int
    end_ns: int
    count: int
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    first_step: int | None
    last_step: int | None
    stddev: float | None = None
    histogram: Histogram | None = None

    def __post_init__(self) -> None:
        untrack(self)  # no window is part of a cycle, and a queue may hold 100,000 of them

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
        """One number of the window, as torch reports it: a float, the count too.

        Raises:
            ValueError: ``HISTOGRAM``, which is no number, or ``STDDEV`` that was not asked for.
        """
        if aggregation is Aggregation.VALUE:
            return self.last
        if aggregation is Aggregation.HISTOGRAM:
            raise ValueError("HISTOGRAM is no number: take quantile(q), or values(), which has percentiles")
        number = getattr(self, aggregation.suffix)
        if number is None:
            raise not_asked_for(self.name, aggregation)
        return float(number)

    def values(self) -> dict[str, float]:
        """What was asked for, by the last part of its name: ``{"mean": 0.5, "p50": 0.4, ...}``.

        ``HISTOGRAM`` gives ``p50``, ``p90``, ``p95`` and ``p99``, every other aggregation one number.
        """
        found = {}
        for aggregation in self.definition.aggregations:
            if aggregation is not Aggregation.HISTOGRAM:
                found[aggregation.suffix] = self.value(aggregation)
            elif self.histogram is None:
                raise not_asked_for(self.name, aggregation)
            else:
                found.update(self.histogram.percentiles())
        return found

    def quantile(self, q: float) -> float:
        """A quantile of the finite samples, as :meth:`monitel.Histogram.quantile` gives it: 0.5 is the median.

        Its relative error is at most ``window.histogram.relative_error``, and 0 for ``q`` 0 and 1.

        Raises:
            ValueError: ``HISTOGRAM`` was not asked for, or ``q`` is not from 0 to 1.
        """
        if self.histogram is None:
            raise not_asked_for(self.name, Aggregation.HISTOGRAM)
        return self.histogram.quantile(q)


def not_asked_for(name: str, aggregation: Aggregation) -> ValueError:
    """What to raise where a distribution is wanted of a Stat that collects none."""
    member = f"monitel.{aggregation.name}"
    return ValueError(f"Stat {name!r} collects no {aggregation.name}: put {member} into its aggregations")
