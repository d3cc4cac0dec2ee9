"""Windows and logged numbers as points, with the running totals of their series (:mod:`monitel_otlp.metrics.totals`).

Each requested aggregation becomes one metric, e.g. ``train.loss.mean``: COUNT and SUM become sums, HISTOGRAM a
histogram or percentiles, others gauges. A logged number becomes a gauge with its name.

With delta temporality monotonic sums and histograms have the samples of one window, else all since the start of the
series. A cumulative sum begins with a point of value zero at the start of the series' first window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monitel.blackbox.record import Item
from monitel.process.worker import Pace
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, UNSPECIFIED, Points, fill, start_point_ns
from monitel_otlp.metrics.totals import Draft, Measurement, Total, WindowMapping


class WindowWriter:
    """Writes windows and logged numbers, with ascending times in each series, and a pause after each slice of work.

    The messages are filled directly: the SDK's metric classes and their encoder take four times as long.
    """

    def __init__(self, mapping: WindowMapping) -> None:
        self._start_ns = mapping.start_ns
        self._delta = mapping.delta
        self._percentiles = mapping.distributions != "histogram"
        self._histograms = mapping.distributions != "percentiles"
        self._pause = Pace().pause

    def write(self, items: Sequence[Item], resource: Any, draft: Draft) -> int:
        scope = resource.scope_metrics.add()
        write_scope(scope)
        points = Points(scope.metrics)
        found: dict[Total, list[Measurement]] = {}
        for item in items:
            for total, measured in draft.measured(item):
                found.setdefault(total, []).append(measured)
            self._pause()
        for total, of_series in found.items():
            self._write_series(draft, total, of_series, points)
            self._pause()
        return points.number

    def _write_series(self, draft: Draft, total: Total, found: list[Measurement], points: Points) -> None:
        for each in found:
            total.begin(each.window.start_ns)
        ordered = _ascending(found, total.end_ns + MILLISECOND_NS)
        if found[0].is_number:
            draft.coalesced += len(found) - len(ordered)
        if [each.window.end_ns for each in ordered] != [each.window.end_ns for each in found]:
            draft.has_moved = True
        if not total.start_ns:
            start_ns = min(self._start_ns, total.begin_ns, ordered[0].window.end_ns - MILLISECOND_NS)
            total.start_ns = max(start_ns, total.end_ns)
        for each in ordered:
            draft.add(total, each)
            self._write_points(total, each, points)
            total.end_ns = each.window.end_ns

    def _write_points(self, total: Total, measured: Measurement, points: Points) -> None:
        definition, window = total.described.definition, measured.window
        for suffix in measured.suffixes:
            if suffix in {"count", "sum"}:
                self._add_sum(total, measured, points, suffix)
            elif suffix == "histogram":
                self._add_distribution(total, measured, points)
            else:
                name = f"{definition.metric}.{suffix}" if suffix else definition.metric
                value = window.last if suffix in {"value", ""} else getattr(window, suffix)
                if value is not None:  # a merged window may lack it
                    _add(total, window.end_ns, points, name, definition.unit).as_double = value

    def _add_sum(self, total: Total, measured: Measurement, points: Points, suffix: str) -> None:
        """Add the point of a sum of one window or up to it, after the start point if it is the first one."""
        definition, end_ns = total.described.definition, measured.window.end_ns
        name, own, value = f"{definition.metric}.{suffix}", measured.sum, total.sum
        unit, monotonic = definition.unit, definition.monotonic
        if suffix == "count":
            unit, own, value, monotonic = "{sample}", measured.window.count, total.count, True
        if self._delta and monotonic:
            if own is not None:
                point = _add(total, end_ns, points, name, unit, "sum", DELTA, True)
                point.start_time_unix_nano = _delta_start_ns(total, measured)
                fill(point, own)
            return
        found = [(end_ns, value)]
        if suffix not in total.begun:
            total.begun |= {suffix}
            found.insert(0, (start_point_ns(total.start_ns, total.begin_ns, end_ns), type(value)(0)))
        for time_ns, each in found:
            point = _add(total, time_ns, points, name, unit, "sum", CUMULATIVE, monotonic)
            point.start_time_unix_nano = total.start_ns
            fill(point, each)

    def _add_distribution(self, total: Total, measured: Measurement, points: Points) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and a histogram, if they are enabled."""
        definition, end_ns, of_window = total.described.definition, measured.window.end_ns, measured.window.histogram
        name, unit = definition.metric, definition.unit
        if of_window is not None and self._percentiles:
            for suffix, value in of_window.percentiles().items():
                _add(total, end_ns, points, f"{name}.{suffix}", unit).as_double = value
        found = of_window if self._delta or of_window is None else total.histogram
        if self._histograms and found is not None and found.count:  # empty if no sample is finite
            temporality = DELTA if self._delta else CUMULATIVE
            point = _add(total, end_ns, points, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = _delta_start_ns(total, measured) if self._delta else total.start_ns
            point.count, point.scale, point.zero_count = found.count, found.scale, found.zero_count
            point.positive.offset, point.negative.offset = found.positive_offset, found.negative_offset
            point.positive.bucket_counts.extend(found.positive)
            point.negative.bucket_counts.extend(found.negative)
            point.min, point.max = found.min, found.max
            if not found.negative and math.isfinite(found.sum):  # the protocol demands it
                point.sum = found.sum


def _add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
    total: Total,
    time_ns: int,
    points: Points,
    name: str,
    unit: str,
    shape: str = "gauge",
    temporality: int = UNSPECIFIED,
    monotonic: bool = False,
) -> Any:
    described = total.described
    description = described.definition.description
    return points.add(time_ns, described.attributes, name, unit, description, shape, temporality, monotonic)


def _delta_start_ns(total: Total, measured: Measurement) -> int:
    """Return the start of points with delta temporality: not before the series' latest point."""
    return max(measured.window.start_ns, total.end_ns)


def _ascending(found: list[Measurement], earliest_ns: int) -> list[Measurement]:
    """Return what was measured of a series, sorted by time, all at ``earliest_ns`` or later, and at least 1 ms apart.

    What was closer is merged; what is late, because the clock was set back, follows the last point each millisecond.
    Two threads may have closed two windows of a series in the wrong order.
    """
    if len(found) == 1 and found[0].window.end_ns >= earliest_ns:
        return found
    merged: list[Measurement] = []
    own_ns = 0  # the time of the last measurement before it was moved
    for each in sorted(found, key=lambda each: each.window.end_ns):
        end_ns = each.window.end_ns
        if merged and end_ns < own_ns + MILLISECOND_NS:
            at = merged.pop().merge(each.at(max(end_ns, earliest_ns - MILLISECOND_NS)))
            own_ns = own_ns if each.is_number else end_ns
        else:
            at, own_ns = each.at(max(end_ns, earliest_ns)), end_ns
        earliest_ns = at.window.end_ns + MILLISECOND_NS
        merged.append(at)
    return merged
