"""Metrics, each broken in one way, by the rule that must be reported."""

import math
from collections.abc import Callable
from typing import Any

from tests.unit.validity.samples import DELTA, SECOND_NS, START_NS, Sample

Break = Callable[[Sample], object]


def change(target: Callable[[Sample], Any], **fields: Any) -> Break:
    def change(sample: Sample) -> None:
        for name, value in fields.items():
            setattr(target(sample), name, value)

    return change


def point(name: str, **fields: Any) -> Break:
    return change(lambda sample: sample.point(name), **fields)


def counts(name: str, counts: list[int]) -> Break:
    def change(sample: Sample) -> None:
        sample.point(name).bucket_counts[:] = counts

    return change


def copied(sample: Sample, of: str, **fields: Any) -> Any:
    copy = sample.scope.metrics.add()
    copy.CopyFrom(sample.metric(of))
    for field, value in fields.items():
        setattr(copy, field, value)
    return copy


def unordered(sample: Sample) -> None:
    points = sample.data("loss.mean").data_points
    points.add().CopyFrom(points[0])
    points[1].time_unix_nano -= 5_000_000


def other_unit(sample: Sample) -> None:
    copied(sample, "loss.count", name="steps.count", unit="s")


def upper_case(sample: Sample) -> None:
    """Add two names that differ in upper case only, and that Prometheus keeps apart by their units."""
    copied(sample, "loss.mean", name="Other", unit="s")
    copied(sample, "loss.mean", name="other", unit="By")


_LATE = START_NS + 2 * SECOND_NS

METRICS: dict[str, Break] = {
    "metric.name": lambda sample: copied(sample, "loss.mean", name="2 words"),
    "metric.twice": upper_case,
    "metric.data": lambda sample: copied(sample, "size", name="other").ClearField("histogram"),
    "metric.changed": lambda sample: setattr(sample.metric("loss.mean"), "unit", "ms"),
    "metric.prometheus": lambda sample: copied(sample, "loss.mean", name="loss_mean"),
    "metric.unit": lambda sample: copied(sample, "loss.mean", name="other", unit="seconds"),
    "metric.count.unit": other_unit,
    "metric.total": lambda sample: copied(sample, "loss.mean", name="loss.total"),
    "metric.temporality": lambda sample: setattr(
        copied(sample, "size", name="other").histogram, "aggregation_temporality", 0
    ),
    "metric.updown": lambda sample: setattr(
        copied(sample, "data.wait.active", name="other").sum, "aggregation_temporality", DELTA
    ),
    "point.time": point("loss.mean", time_unix_nano=0),
    "point.start.missing": lambda sample: setattr(
        copied(sample, "loss.count", name="other").sum.data_points[0], "start_time_unix_nano", 0
    ),
    "point.start.late": point("loss.mean", start_time_unix_nano=_LATE + 1),
    "point.start.equal": point("loss.count", start_time_unix_nano=_LATE),
    "point.value": lambda sample: sample.point("loss.mean").ClearField("value"),
    "point.nan": lambda sample: setattr(
        copied(sample, "loss.count", name="other").sum.data_points[0], "as_double", math.nan
    ),
    "point.negative": point("batches", as_int=-1),
    "point.flags": point("loss.mean", flags=1),
    "exemplar.ids": lambda sample: setattr(sample.point("loss.mean").exemplars[0], "span_id", b"short"),
    "exemplar.value": lambda sample: setattr(sample.point("loss.mean").exemplars[0], "time_unix_nano", 0),
    "histogram.count": counts("size", [2, 2, 3]),
    "histogram.bounds": lambda sample: sample.point("size").explicit_bounds.reverse(),
    "histogram.buckets": counts("size", [3, 3]),
    "histogram.minmax": point("loss.histogram", max=2.5),
    "histogram.sum": point("loss.histogram", sum=1.0),
    "histogram.sum.range": point("size", sum=100.0),
    "histogram.scale": point("loss.histogram", scale=21),
    "histogram.zero": point("loss.histogram", zero_threshold=-1.0),
    "series.duplicate": point("loss.mean", time_unix_nano=START_NS + SECOND_NS, as_double=7.0),
    "series.order": unordered,
    "series.start": point("loss.count", start_time_unix_nano=START_NS + 1),
    "series.continues": point("loss.count", start_time_unix_nano=START_NS + SECOND_NS),
    "series.falls": point("loss.count", as_int=0),
    "series.overlap": point("batches", start_time_unix_nano=START_NS + SECOND_NS - 1),
}
