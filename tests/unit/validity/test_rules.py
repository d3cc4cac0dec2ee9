"""Each rule is reported where it is broken, in small valid requests that are changed; and everything is checked."""

import math
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.inbox import DEADLINE, Answer, take_accepted
from tests.support.receiver import MESSAGES, Receiver
from tests.support.validity.envelope import LEVELS
from tests.support.validity.requests import assert_valid, violations
from tests.support.validity.rules import RULES

SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS
CUMULATIVE, DELTA = 2, 1
TRACE_ID, ROOT_ID, CHILD_ID = bytes(15) + b"\1", bytes(7) + b"\1", bytes(7) + b"\2"
SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
_RESOURCE = (
    *("service.name", "telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version"),
    *("telemetry.distro.name", "telemetry.distro.version"),
)


def set_attribute(pairs: Any, key: str, value: str | None = "x") -> None:
    """Add an attribute; without a value if it is None."""
    pair = pairs.add(key=key)
    if value is not None:
        pair.value.string_value = value


def request_of(signal: str, *records: dict[str, Any]) -> Any:
    """Return a request with these records in one scope of one resource."""
    resources, scopes, kind = LEVELS[signal]
    scoped = {"schema_url": SCHEMA, "scope": {"name": "monitel", "version": "1"}, kind: records}
    attributes = [{"key": key, "value": {"string_value": "x"}} for key in _RESOURCE]
    resource = {"schema_url": SCHEMA, "resource": {"attributes": attributes}, scopes: [scoped]}
    return MESSAGES[signal][0](**{resources: [resource]})


def metric(name: str, unit: str, kind: str, point: dict[str, Any], **data: object) -> dict[str, Any]:
    return {"name": name, "unit": unit, kind: {**data, "data_points": [point]}}


def metrics_at(seconds: int) -> Any:
    """Return a request with a metric of each kind, with points at this time after the start."""
    time_ns = START_NS + seconds * SECOND_NS
    times: dict[str, Any] = {"start_time_unix_nano": START_NS, "time_unix_nano": time_ns}
    second = {**times, "start_time_unix_nano": time_ns - SECOND_NS}
    cumulative, thrice = {"aggregation_temporality": CUMULATIVE}, [seconds, seconds, seconds]
    explicit = {"sum": 4.5 * seconds, "min": 0.5, "max": 3.0, "explicit_bounds": [1.0, 2.0], "bucket_counts": thrice}
    exponential = {
        "min": -3.0,
        "max": 1.5,
        "scale": 0,
        "zero_count": seconds,
        "positive": {"offset": 0, "bucket_counts": [seconds]},  # from 1 to 2
        "negative": {"offset": 0, "bucket_counts": [seconds, seconds]},  # from -1 to -2, and from -2 to -4
    }
    return request_of(
        "metrics",
        metric("loss.mean", "s", "gauge", {"time_unix_nano": time_ns, "as_double": -0.5}),
        metric("loss.count", "{sample}", "sum", {**times, "as_int": seconds}, **cumulative, is_monotonic=True),
        metric("data.wait.active", "{wait}", "sum", {**times, "as_int": -seconds}, **cumulative),
        metric("batches", "By/s", "sum", {**second, "as_int": 3}, aggregation_temporality=DELTA, is_monotonic=True),
        metric("size", "MiBy", "histogram", {**times, **explicit, "count": 3 * seconds}, **cumulative),
        metric(
            "loss.histogram", "1", "exponential_histogram", {**times, **exponential, "count": 4 * seconds}, **cumulative
        ),
    )


def logs() -> Any:
    observed = {"observed_time_unix_nano": START_NS, "body": {"string_value": "low memory"}}
    return request_of(
        "logs",
        {"event_name": "run.started", "time_unix_nano": START_NS, "severity_number": 9, "severity_text": "INFO"},
        {"severity_number": 13, "severity_text": "WARNING", "trace_id": TRACE_ID, "span_id": ROOT_ID, **observed},
    )


def traces() -> Any:
    usual = {"kind": 1, "trace_id": TRACE_ID, "start_time_unix_nano": START_NS, "end_time_unix_nano": START_NS + 9}
    failed = {"parent_span_id": ROOT_ID, "status": {"code": 2, "message": "ValueError"}}
    return request_of(
        "traces",
        {"name": "step", "span_id": ROOT_ID, **usual},
        {"name": "forward", "span_id": CHILD_ID, **usual, **failed},
    )


class Sample:
    def __init__(self) -> None:
        self.earlier, self.metrics, self.logs, self.traces = metrics_at(1), metrics_at(2), logs(), traces()
        both = [("metrics", self.earlier), ("metrics", self.metrics)]
        self.requests: list[tuple[str, Any]] = [*both, ("logs", self.logs), ("traces", self.traces)]
        self.resource: Any = self.metrics.resource_metrics[0]
        self.scope: Any = self.resource.scope_metrics[0]
        self.event: Any
        self.event, self.record = self.logs.resource_logs[0].scope_logs[0].log_records
        self.spans: Any = self.traces.resource_spans[0].scope_spans[0].spans
        self.root, self.child = self.spans

    def metric(self, name: str) -> Any:
        return next(metric for metric in self.scope.metrics if metric.name == name)

    def data(self, name: str) -> Any:
        metric = self.metric(name)
        return getattr(metric, metric.WhichOneof("data"))

    def point(self, name: str) -> Any:
        """Return the only point of a metric of the later request."""
        return self.data(name).data_points[0]


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


def copied(sample: Sample, of: str, name: str = "other", **fields: Any) -> Any:
    """Add a copy of a metric of the later request under another name."""
    copy = sample.scope.metrics.add()
    copy.CopyFrom(sample.metric(of))
    copy.name = name
    for field, value in fields.items():
        setattr(copy, field, value)
    return copy


def new_count(sample: Sample) -> Any:
    """Return the only point of a copy of the counter."""
    return copied(sample, "loss.count").sum.data_points[0]


def unordered(sample: Sample) -> None:
    points = sample.data("loss.mean").data_points
    points.add().CopyFrom(points[0])
    points[1].time_unix_nano -= 5_000_000


def upper_case(sample: Sample) -> None:
    """Add two names that differ in upper case only, and that Prometheus keeps apart by their units."""
    copied(sample, "loss.mean", name="Other", unit="s")
    copied(sample, "loss.mean", unit="By")


_LATE = START_NS + 2 * SECOND_NS
METRICS: dict[str, Break] = {
    "metric.name": lambda sample: copied(sample, "loss.mean", name="2 words"),
    "metric.twice": upper_case,
    "metric.data": lambda sample: copied(sample, "size").ClearField("histogram"),
    "metric.changed": lambda sample: setattr(sample.metric("loss.mean"), "unit", "ms"),
    "metric.prometheus": lambda sample: copied(sample, "loss.mean", name="loss_mean"),
    "metric.unit": lambda sample: copied(sample, "loss.mean", unit="seconds"),
    "metric.count.unit": lambda sample: copied(sample, "loss.count", name="steps.count", unit="s"),
    "metric.total": lambda sample: copied(sample, "loss.mean", name="loss.total"),
    "metric.temporality": change(lambda sample: copied(sample, "size").histogram, aggregation_temporality=0),
    "metric.updown": change(lambda sample: copied(sample, "data.wait.active").sum, aggregation_temporality=DELTA),
    "point.time": point("loss.mean", time_unix_nano=0),
    "point.start.missing": change(new_count, start_time_unix_nano=0),
    "point.start.late": point("loss.mean", start_time_unix_nano=_LATE + 1),
    "point.start.equal": point("loss.count", start_time_unix_nano=_LATE),
    "point.value": lambda sample: sample.point("loss.mean").ClearField("value"),
    "point.nan": change(new_count, as_double=math.nan),
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


#: Rules that the broken sample of another rule breaks as well.
TOGETHER = {"scope.version": {"scope.changed"}, "scope.schema": {"scope.changed"}}


def test_each_broken_rule_is_reported() -> None:
    """One change of valid requests breaks one rule, and exactly that one is reported; no rule is left out."""
    assert [] == violations(Sample().requests)
    expected, found = {}, {}
    for rule, break_it in {**ENVELOPES, **METRICS, **LOGS, **TRACES}.items():
        sample = Sample()
        break_it(sample)
        expected[rule] = {rule} | TOGETHER.get(rule, set())
        found[rule] = {each.rule for each in violations(sample.requests)}
    assert (expected, {*RULES}) == (found, {*found})


def test_bucket_that_falls_is_reported() -> None:
    """The count of a histogram may rise while a bucket falls."""
    explicit, exponential = Sample(), Sample()
    change(lambda sample: sample.point("size"), min=1.0)(explicit)
    counts("size", [0, 3, 3])(explicit)
    change(lambda sample: sample.point("loss.histogram"), zero_count=4, max=0.0)(exponential)
    exponential.point("loss.histogram").positive.bucket_counts[:] = [0]
    for sample in (explicit, exponential):
        assert {"series.falls"} == {each.rule for each in violations(sample.requests)}


_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def test_accepted_requests_are_checked(receiver: Receiver, grpc_receiver: Any, request: pytest.FixtureRequest) -> None:
    """An invalid request is found whether it came over HTTP or gRPC; a refused one is not checked."""
    import grpc

    assert "valid_output" in request.fixturenames
    sample = Sample()
    sample.point("loss.count").time_unix_nano = 0
    body = sample.metrics.SerializeToString()
    post = urllib.request.Request(f"{receiver.url}/v1/metrics", body, {"Content-Type": "application/x-protobuf"})
    receiver.answer("metrics", Answer(400))
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(post, timeout=DEADLINE)
    assert [] == [each for each in receiver.of("metrics") if each.answer.takes]
    urllib.request.urlopen(post, timeout=DEADLINE).close()
    with grpc.insecure_channel(grpc_receiver.address) as channel:
        channel.unary_unary(_EXPORT, None, None)(body, timeout=DEADLINE)
    accepted = take_accepted()
    assert [("metrics", sample.metrics)] * 2 == accepted
    with pytest.raises(AssertionError, match=r"point\.time: a point has no time"):
        assert_valid(accepted)
