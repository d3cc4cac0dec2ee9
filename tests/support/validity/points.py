"""Data points, each by itself: times, values, flags and exemplars."""

import math
from typing import Any

from tests.support.validity.envelope import check_attributes
from tests.support.validity.histograms import check_explicit, check_exponential
from tests.support.validity.rules import Findings

CUMULATIVE, DELTA = 2, 1
_NO_VALUE = 1  # the flag for a point without a value


def check_points(metric: Any, path: str, findings: Findings) -> None:
    kind = metric.WhichOneof("data")
    if kind is None:
        findings.add("metric.data", path)
        return
    data = getattr(metric, kind)
    findings.check(len(data.data_points), "metric.data", path)
    temporality = CUMULATIVE
    if kind != "gauge":
        temporality = data.aggregation_temporality
        findings.check(temporality in {CUMULATIVE, DELTA}, "metric.temporality", path, temporality)
    if kind == "sum" and not data.is_monotonic:
        findings.check(temporality == CUMULATIVE, "metric.updown", path)
    for number, point in enumerate(data.data_points):
        where = f"{path}.data_points[{number}]"
        check_attributes(point.attributes, where, findings)
        _check_times(kind, point, where, findings)
        if point.flags:
            _check_flags(kind, point, where, findings)
        elif kind == "histogram":
            check_explicit(point, where, findings)
        elif kind == "exponential_histogram":
            check_exponential(point, where, findings)
        else:
            _check_number(kind, data, point, where, findings)
        for exemplar in point.exemplars:
            _check_exemplar(exemplar, where, findings)


def _check_times(kind: str, point: Any, path: str, findings: Findings) -> None:
    time_ns, start_ns = point.time_unix_nano, point.start_time_unix_nano
    findings.check(time_ns, "point.time", path)
    if start_ns > time_ns:
        findings.add("point.start.late", path, f"{start_ns - time_ns} ns")
    if kind == "gauge":
        return
    findings.check(start_ns, "point.start.missing", path)
    if start_ns == time_ns and not _is_empty(point):
        findings.add("point.start.equal", path, start_ns)


def _is_empty(point: Any) -> bool:
    return not (point.count if hasattr(point, "count") else number_of(point))


def _check_flags(kind: str, point: Any, path: str, findings: Findings) -> None:
    has_value = point.WhichOneof("value") is not None if kind in {"gauge", "sum"} else point.count
    findings.check(point.flags == _NO_VALUE and not has_value, "point.flags", path, point.flags)


def _check_number(kind: str, data: Any, point: Any, path: str, findings: Findings) -> None:
    if point.WhichOneof("value") is None:
        findings.add("point.value", path)
        return
    if kind == "sum" and data.is_monotonic:
        value = number_of(point)
        findings.check(not math.isnan(value), "point.nan", path, value)
        findings.check(not value < 0, "point.negative", path, value)


def _check_exemplar(exemplar: Any, path: str, findings: Findings) -> None:
    lengths = len(exemplar.trace_id), len(exemplar.span_id)
    findings.check(lengths in {(0, 0), (16, 8)}, "exemplar.ids", path, lengths)
    is_set = exemplar.time_unix_nano and exemplar.WhichOneof("value") is not None
    findings.check(is_set, "exemplar.value", path)


def number_of(point: Any) -> float:
    """Return the value of a point of a gauge or sum; 0 if it has none."""
    kind = point.WhichOneof("value")
    return getattr(point, kind) if kind else 0
