"""Small valid requests of each signal, which tests change to break one rule at a time."""

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.support.validity.envelope import LEVELS

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


def envelope(signal: str, message: Any) -> Any:
    """Add a resource with a scope to a request, and return the scope's part."""
    resources, scopes, _ = LEVELS[signal]
    resource = getattr(message, resources).add(schema_url=SCHEMA)
    for key in _RESOURCE:
        set_attribute(resource.resource.attributes, key)
    scoped = getattr(resource, scopes).add(schema_url=SCHEMA)
    scoped.scope.name, scoped.scope.version = "monitel", "1"
    return scoped


def metrics_at(seconds: int) -> ExportMetricsServiceRequest:
    """Return a request with a metric of each kind, with points at this time after the start."""
    message = ExportMetricsServiceRequest()
    metrics = envelope("metrics", message).metrics
    time_ns = START_NS + seconds * SECOND_NS
    times = {"start_time_unix_nano": START_NS, "time_unix_nano": time_ns}

    metrics.add(name="loss.mean", unit="s").gauge.data_points.add(time_unix_nano=time_ns, as_double=-0.5)

    counter = metrics.add(name="loss.count", unit="{sample}").sum
    counter.is_monotonic, counter.aggregation_temporality = True, CUMULATIVE
    counter.data_points.add(**times, as_int=seconds)

    active = metrics.add(name="data.wait.active", unit="{wait}").sum
    active.aggregation_temporality = CUMULATIVE
    active.data_points.add(**times, as_int=-seconds)

    delta = metrics.add(name="batches", unit="By/s").sum
    delta.is_monotonic, delta.aggregation_temporality = True, DELTA
    begin_ns = time_ns - SECOND_NS
    delta.data_points.add(start_time_unix_nano=begin_ns, time_unix_nano=time_ns, as_int=3)

    explicit = metrics.add(name="size", unit="MiBy").histogram
    explicit.aggregation_temporality = CUMULATIVE
    explicit.data_points.add(
        **times, count=3 * seconds, sum=4.5 * seconds, min=0.5, max=3.0,
        explicit_bounds=[1.0, 2.0], bucket_counts=[seconds, seconds, seconds],
    )  # fmt: skip

    exponential = metrics.add(name="loss.histogram", unit="1").exponential_histogram
    exponential.aggregation_temporality = CUMULATIVE
    point = exponential.data_points.add(**times, count=4 * seconds, min=-3.0, max=1.5, scale=0, zero_count=seconds)
    point.positive.offset = 0  # from 1 to 2
    point.positive.bucket_counts.extend([seconds])
    point.negative.offset = 0  # from -1 to -2, and from -2 to -4
    point.negative.bucket_counts.extend([seconds, seconds])
    return message


def logs() -> ExportLogsServiceRequest:
    message = ExportLogsServiceRequest()
    records = envelope("logs", message).log_records
    records.add(event_name="run.started", time_unix_nano=START_NS, severity_number=9, severity_text="INFO")
    record = records.add(observed_time_unix_nano=START_NS, severity_number=13, severity_text="WARNING")
    record.body.string_value = "low memory"
    record.trace_id, record.span_id = TRACE_ID, ROOT_ID
    return message


def traces() -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    spans = envelope("traces", message).spans
    times = {"start_time_unix_nano": START_NS, "end_time_unix_nano": START_NS + 9}
    spans.add(name="step", kind=1, trace_id=TRACE_ID, span_id=ROOT_ID, **times)
    child = spans.add(name="forward", kind=1, trace_id=TRACE_ID, span_id=CHILD_ID, parent_span_id=ROOT_ID, **times)
    child.status.code, child.status.message = 2, "ValueError"
    return message


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
