"""Requests, each broken in one way, by the rule that must be reported."""

import math
from collections.abc import Callable
from typing import Any

from tests.unit.validity.samples import CHILD_ID, DELTA, SECOND_NS, START_NS, Sample, set_attribute

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
    "metric.count.unit": lambda sample: copied(sample, "loss.count", name="steps.count", unit="s"),
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


def repeated(parts: Any, **fields: Any) -> Any:
    copy = parts.add()
    copy.CopyFrom(parts[0])
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def event(**fields: Any) -> Break:
    return change(lambda sample: sample.event, **fields)


def child(**fields: Any) -> Break:
    return change(lambda sample: sample.child, **fields)


def other_scope(sample: Sample) -> None:
    repeated(sample.traces.resource_spans[0].scope_spans).scope.name = "monitel.pipeline"


def repeated_key(sample: Sample) -> None:
    for _ in range(2):
        set_attribute(sample.point("size").attributes, "split")


ENVELOPES: dict[str, Break] = {
    "resource.required": lambda sample: sample.resource.resource.attributes.pop(0),
    "resource.distro": lambda sample: sample.resource.resource.attributes.pop(),
    "resource.schema": change(lambda sample: sample.resource, schema_url=""),
    "resource.twice": lambda sample: repeated(sample.traces.resource_spans),
    "resource.empty": lambda sample: sample.logs.resource_logs[0].scope_logs[0].ClearField("log_records"),
    "scope.name": lambda sample: setattr(sample.logs.resource_logs[0].scope_logs[0].scope, "name", ""),
    "scope.version": lambda sample: setattr(sample.scope.scope, "version", ""),
    "scope.schema": change(lambda sample: sample.scope, schema_url=""),
    "scope.twice": lambda sample: repeated(sample.traces.resource_spans[0].scope_spans),
    "scope.other": other_scope,
    "scope.changed": lambda sample: setattr(sample.scope.scope, "version", "2"),
    "attribute.key": lambda sample: set_attribute(sample.child.attributes, ""),
    "attribute.twice": repeated_key,
    "attribute.value": lambda sample: set_attribute(sample.event.attributes, "number", None),
}
LOGS: dict[str, Break] = {
    "log.time": event(time_unix_nano=0),
    "log.severity": event(severity_number=17),
    "log.event.severity": event(severity_text=""),
    "log.ids": event(span_id=CHILD_ID),
    "log.event": lambda sample: sample.record.ClearField("body"),
}
TRACES: dict[str, Break] = {
    "span.ids": child(span_id=bytes(8)),
    "span.duplicate": lambda sample: repeated(sample.spans, name="other"),
    "span.time": child(end_time_unix_nano=START_NS - 1),
    "span.name": child(name=""),
    "span.kind": child(kind=0),
    "span.status": lambda sample: setattr(sample.child.status, "code", 1),
    "span.parent": child(parent_span_id=b"unknown!"),
    "span.parent.trace": child(trace_id=bytes(15) + b"\7"),
    "span.cycle": change(lambda sample: sample.root, parent_span_id=CHILD_ID),
    "span.within": child(end_time_unix_nano=START_NS + 10),
}
