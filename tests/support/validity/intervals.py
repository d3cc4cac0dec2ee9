"""Series over all requests of a process: starts, order, and values that must not fall."""

from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.validity.envelope import OWN, Scoped, identity
from tests.support.validity.points import CUMULATIVE, DELTA, number_of
from tests.support.validity.rules import Findings

#: Requests may repeat it with one time: Prometheus needs the latest time of a resource in each request.
_REPEATED = "monitel.queue.size"


class _Sample(NamedTuple):
    start_ns: int
    time_ns: int
    value: float
    buckets: tuple[tuple[float, int], ...]  # of a histogram: number and count of each filled bucket
    grid: tuple[float, ...]  # scale or bounds: what makes the buckets of two points comparable


class _Series:
    def __init__(self, name: str, temporality: int, *, monotonic: bool) -> None:
        self.name = name
        self.temporality = temporality
        self.monotonic = monotonic
        self.samples: list[_Sample] = []


class Intervals:
    """Collects the points of all series, and checks each series at the end.

    With ``apart``, points of monitel that differ are in different milliseconds, which Prometheus keeps; with
    ``undisturbed`` each point must arrive once, and those of a series of monitel must ascend from request to request.
    """

    def __init__(self, findings: Findings, *, apart: bool = True, undisturbed: bool = True) -> None:
        self._findings = findings
        self._apart_ns = 1_000_000 if apart else 1
        self._undisturbed = undisturbed
        self._series: dict[tuple[bytes, str, str, bytes], _Series] = {}

    def collect(self, scoped: Scoped) -> None:
        begun: dict[tuple[bytes, str, str, bytes], int] = {}
        ordered = self._undisturbed and scoped.scope == OWN
        for number, metric in enumerate(scoped.records):
            kind = metric.WhichOneof("data")
            if kind is None:
                continue
            data = getattr(metric, kind)
            temporality = 0 if kind == "gauge" else data.aggregation_temporality
            monotonic = data.is_monotonic if kind == "sum" else kind != "gauge"
            for point in data.data_points:
                key = (scoped.resource, scoped.scope, metric.name, identity(point.attributes))
                series = self._series.get(key)
                if series is None:
                    series = self._series[key] = _Series(metric.name, temporality, monotonic=monotonic)
                latest_ns = begun.get(key, series.samples[-1].time_ns if ordered and series.samples else 0)
                begun[key] = point.time_unix_nano
                if 0 < point.time_unix_nano < latest_ns:
                    self._findings.add("series.order", f"{scoped.path}[{number}] {metric.name}", point.time_unix_nano)
                series.samples.append(_sample(point))

    def check(self) -> None:
        for (_, scope, *_), series in self._series.items():
            apart_ns = self._apart_ns if scope == OWN else 1
            once = series.name == _REPEATED or not self._undisturbed
            found = set(series.samples) if once else series.samples
            samples = sorted(found, key=lambda sample: (sample.time_ns, sample.start_ns))
            for before, after in pairwise(samples):
                close = before.value != after.value and before.time_ns // apart_ns == after.time_ns // apart_ns
                self._pair(series, before, after, close=close or before.time_ns == after.time_ns)

    def _pair(self, series: _Series, before: _Sample, after: _Sample, *, close: bool) -> None:
        findings, name = self._findings, series.name
        if close:
            findings.add("series.duplicate", name, f"{before.value} and {after.value} at {after.time_ns}")
        elif series.temporality == DELTA:
            overlap = before.time_ns - after.start_ns
            findings.check(overlap <= 0, "series.overlap", name, f"by {overlap} ns")
        elif series.temporality == CUMULATIVE and before.start_ns != after.start_ns:
            early = before.time_ns - after.start_ns
            if early > 0:
                findings.add("series.start", name, f"start {after.start_ns}, {early} ns before the last time")
            elif series.monotonic and early == 0:
                goes_on = 0 < before.value <= after.value
                findings.check(not goes_on, "series.continues", name, f"{before.value} to {after.value}")
        elif series.temporality == CUMULATIVE and series.monotonic:
            findings.check(before.value <= after.value, "series.falls", name, f"{before.value} to {after.value}")
            if before.grid == after.grid:
                counts = dict(after.buckets)
                fallen = [index for index, count in before.buckets if counts.get(index, 0) < count]
                findings.check(not fallen, "series.falls", name, f"buckets {fallen}")


def _sample(point: Any) -> _Sample:
    times = point.start_time_unix_nano, point.time_unix_nano
    if not hasattr(point, "count"):
        return _Sample(*times, number_of(point), (), ())
    if hasattr(point, "scale"):
        parts = ((1, point.positive), (-1, point.negative))
        found = [
            (sign, each.offset + index, count) for sign, each in parts for index, count in enumerate(each.bucket_counts)
        ]
        filled = [(sign * (index + 0.5 + 1e6), count) for sign, index, count in found if count]
        return _Sample(*times, point.count, ((0.0, point.zero_count), *filled), (point.scale, point.zero_threshold))
    counts = tuple((float(index), count) for index, count in enumerate(point.bucket_counts) if count)
    return _Sample(*times, point.count, counts, (*point.explicit_bounds, len(point.bucket_counts)))
