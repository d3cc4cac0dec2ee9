"""The values of this process at this moment, from the series of its pipeline."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.blackbox.forms import STEP_TIME
from monitel.console.values.run_values import Progress, Value
from monitel.step import first_step
from monitel.worker import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.recorder import Series
    from monitel.console.values.run_values import Scalar

STEPS = ("training.steps", "training.steps.skipped")

_RANK, _OVERFLOW = "training.rank", "otel.metric.overflow"
_IN_LEDGER = "training.time"


class Latest(NamedTuple):
    """The values of a process.

    Attributes:
        values: The last number of each series, and the total of each counter.
        counters: Keys of the totals that belong to the process; other totals begin with the pipeline.
        config: The configuration by dotted name.
        progress: The steps. Durations of steps begin with the pipeline.
    """

    values: list[Value]
    counters: frozenset[Any]
    config: Mapping[str, Scalar]
    progress: Progress


def latest(
    series: Iterable[Series], numbers: Mapping[Series, tuple[int, int, Any]], config: Mapping[str, Scalar]
) -> Latest:
    """Return the values of this process. It touches no file, takes no lock, and releases the GIL between slices.

    Args:
        series: All series of the pipeline.
        numbers: The last number of each series of ``monitel.log()``, as :class:`Recorder` has them.
        config: The configuration of the process by dotted name.
    """
    logged = [
        Value(each.name, scalars_of(each.plain_attributes), each.definition.unit, float(value), time_ns)
        for each, (_, time_ns, value) in numbers.items()
    ]
    pace = Pace()
    windows: list[Value] = []
    for each in series:
        windows += _of_stat(each)
        pace.pause()
    counters = list(_of_counters())
    step_time = [each for each in series if each.definition.name == STEP_TIME]
    return Latest(
        values=[*logged, *windows, *counters],
        counters=frozenset(each.key for each in counters),
        config=config,
        progress=Progress(
            steps=_made(),
            last_step=monitel.get_step(),
            timed=sum(each.count for each in step_time),
            seconds=sum(each.sum for each in step_time),
        ),
    )


def attributes_of(pairs: Iterable[KeyValue]) -> tuple[tuple[str, Scalar], ...]:
    """Return the attributes of a series without the rank, in the order of their names."""
    found = {pair.key: getattr(pair.value, kind) for pair in pairs if (kind := pair.value.WhichOneof("value"))}
    return scalars_of(found)


def scalars_of(attributes: Mapping[str, Any]) -> tuple[tuple[str, Scalar], ...]:
    """Return the attributes without the rank, as :func:`attributes_of` does."""
    scalars = {name: each for name, each in attributes.items() if isinstance(each, bool | int | float | str)}
    return tuple(sorted((name, each) for name, each in scalars.items() if name != _RANK))


def _of_stat(series: Series) -> Iterator[Value]:
    """Yield the aggregations of the last window of a Stat, and its totals; none for the series beyond the limit."""
    window = series.latest
    if window is None:
        return
    attributes, unit = scalars_of(series.plain_attributes), series.definition.unit
    if (_OVERFLOW, True) in attributes:
        return
    for aggregation in window.definition.aggregations:
        is_total = aggregation in {monitel.COUNT, monitel.SUM}
        of_unit = "{sample}" if aggregation is monitel.COUNT else unit
        for suffix, number in _aggregated(series, window, aggregation):
            yield Value(f"{series.name}.{suffix}", attributes, of_unit, float(number), window.end_ns, is_total)


def _aggregated(
    series: Series, window: monitel.Window, aggregation: monitel.Aggregation
) -> Iterator[tuple[str, float]]:
    """Yield each number of an aggregation with the end of its name: totals of the series, others of the window."""
    suffix = aggregation.suffix
    if aggregation is monitel.HISTOGRAM:
        if window.histogram is not None and window.histogram.count:
            yield from window.histogram.percentiles().items()
    elif aggregation in {monitel.COUNT, monitel.SUM}:
        yield suffix, series.count if aggregation is monitel.COUNT else series.sum
    elif aggregation is monitel.MEAN:
        yield suffix, window.sum / window.count
    elif (number := getattr(window, _FIELDS[suffix])) is not None:
        yield suffix, number


_FIELDS = {"value": "last", "min": "min", "max": "max", "stddev": "stddev"}


def _of_counters() -> Iterator[Value]:
    now_ns = time.time_ns()
    for counter, total, _ in monitel.counters():
        if counter.name != _IN_LEDGER and math.isfinite(total):
            attributes = tuple(sorted(counter.attributes.items()))
            yield Value(counter.name, attributes, counter.unit, total, now_ns, total=True)


def _made() -> int:
    """Return the number of steps that this process has made: as counted, otherwise from the first to the last one."""
    of_steps = [each for each in monitel.counters() if each.counter.name in STEPS and not each.counter.attributes]
    counted = sum(each.total for each in of_steps)
    first, last = first_step(), monitel.get_step()
    if counted or first is None or last is None:
        return int(counted)
    return max(last - first, 0) + 1
