"""Data points, each by itself: times, values and flags."""

import math
from typing import Any

from tests.support.validity.envelope import check_attributes
from tests.support.validity.histograms import check_explicit, check_exponential
from tests.support.validity.rules import Findings

CUMULATIVE, DELTA = 2, 1


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
        findings.check(not point.flags, "point.flags", where, point.flags)
        if kind == "histogram":
            check_explicit(point, where, findings)
        elif kind == "exponential_histogram":
            check_exponential(point, where, findings)
        else:
            _check_number(kind, data, point, where, findings)


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


def _check_number(kind: str, data: Any, point: Any, path: str, findings: Findings) -> None:
    if point.WhichOneof("value") is None:
        findings.add("point.value", path)
        return
    if kind == "sum" and data.is_monotonic:
        value = number_of(point)
        findings.check(not math.isnan(value), "point.nan", path, value)
        findings.check(not value < 0, "point.negative", path, value)


def number_of(point: Any) -> float:
    kind = point.WhichOneof("value")
    return getattr(point, kind) if kind else 0
