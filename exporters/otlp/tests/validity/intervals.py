"""Series over all requests of a process: starts, order, and values that must not fall."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from .envelope import identity
from .points import CUMULATIVE, DELTA, number_of

if TYPE_CHECKING:
    from .envelope import Scoped
    from .rules import Findings


class _Sample(NamedTuple):
    start_ns: int
    time_ns: int
    value: float
    content: bytes


class _Series:
    """The points of one series, in order of arrival."""

    def __init__(self, name: str, temporality: int, *, monotonic: bool) -> None:
        self.name = name
        self.temporality = temporality
        self.monotonic = monotonic
        self.samples: list[_Sample] = []


class Intervals:
    """Collects the points of all series, and checks each series at the end."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._series: dict[tuple[bytes, str, str, bytes], _Series] = {}

    def collect(self, scoped: Scoped) -> None:
        """Keep the points of one scope in one request."""
        for number, metric in enumerate(scoped.records):
            kind = metric.WhichOneof("data")
            if kind is None:
                continue
            data = getattr(metric, kind)
            temporality = 0 if kind == "gauge" else data.aggregation_temporality
            monotonic = data.is_monotonic if kind == "sum" else kind != "gauge"
            latest: dict[bytes, int] = {}
            for point in data.data_points:
                attributes = identity(point.attributes)
                if point.time_unix_nano < latest.get(attributes, 0):
                    self._findings.add("series.order", f"{scoped.path}[{number}] {metric.name}", point.time_unix_nano)
                latest[attributes] = point.time_unix_nano
                key = (scoped.resource, scoped.scope, metric.name, attributes)
                series = self._series.get(key)
                if series is None:
                    series = self._series[key] = _Series(metric.name, temporality, monotonic=monotonic)
                series.samples.append(_sample(point))

    def check(self) -> None:
        """Check all series."""
        for series in self._series.values():
            once = {sample.content: sample for sample in series.samples}  # a request may arrive twice
            samples = sorted(once.values(), key=lambda sample: (sample.time_ns, sample.start_ns))
            for before, after in pairwise(samples):
                self._pair(series, before, after)

    def _pair(self, series: _Series, before: _Sample, after: _Sample) -> None:
        findings, name = self._findings, series.name
        if before.time_ns == after.time_ns:
            findings.add("series.duplicate", name, f"{before.value} and {after.value} at {after.time_ns}")
        elif series.temporality == DELTA:
            overlap = before.time_ns - after.start_ns
            findings.check(overlap <= 0, "series.overlap", name, f"by {overlap} ns")
        elif series.temporality == CUMULATIVE and before.start_ns != after.start_ns:
            early = before.time_ns - after.start_ns
            findings.check(early <= 0, "series.start", name, f"start {after.start_ns}, {early} ns before the last time")
        elif series.temporality == CUMULATIVE and series.monotonic:
            findings.check(before.value <= after.value, "series.falls", name, f"{before.value} to {after.value}")


def _sample(point: Any) -> _Sample:
    value = point.count if hasattr(point, "count") else number_of(point)
    return _Sample(point.start_time_unix_nano, point.time_unix_nano, value, point.SerializeToString(deterministic=True))
