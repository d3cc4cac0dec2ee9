"""State of a series as plain values, for the header of a raw segment."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

import monitel
from monitel.attributes import escape_surrogates
from monitel_otlp.metrics.series import Series
from monitel_otlp.metrics.window_row import histogram_of, plain_histogram

if TYPE_CHECKING:
    from monitel_otlp.metrics.window_row import PlainHistogram

# Metric name, Stat name, unit, description, monotonic, serialized attributes, end of the last point in Unix ns, total
# distribution, distributions of dropped windows, earliest start of a window in Unix ns, suffixes of begun sums, start
# of cumulative points in Unix ns.
PlainSeries = tuple[
    str, str, str, str, bool, list[bytes], int, "PlainHistogram | None", "list[PlainHistogram]", int, list[str], int
]


def plain_series(series: Series) -> PlainSeries:
    """Return the current state of a series."""
    definition = series.definition
    return (
        series.name,
        escape_surrogates(definition.name),
        escape_surrogates(definition.unit),
        escape_surrogates(definition.description),
        bool(definition.monotonic),
        [pair.SerializeToString() for pair in series.attributes],
        int(series.end_ns),
        None if series.histogram is None else plain_histogram(series.histogram),
        [plain_histogram(histogram) for histogram in series.dropped],
        int(series.begin_ns),
        sorted(series.begun),
        int(series.start_ns),
    )


def series_of(plain: PlainSeries) -> Series:
    """Return a series with the given state."""
    name, stat, unit, description, monotonic, attributes, end_ns, histogram, dropped, begin_ns, begun, start_ns = plain
    definition = monitel.StatDefinition(stat, (), unit, description, {}, monotonic)
    return Series(
        name,
        definition,
        tuple(KeyValue.FromString(pair) for pair in attributes),
        end_ns=end_ns,
        histogram=None if histogram is None else histogram_of(histogram),
        dropped=deque(histogram_of(each) for each in dropped),
        begin_ns=begin_ns,
        begun=frozenset(begun),
        start_ns=start_ns,
    )
