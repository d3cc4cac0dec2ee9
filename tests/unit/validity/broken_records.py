"""Envelopes, log records and spans, each broken in one way, by the rule that must be reported."""

from typing import Any

from tests.unit.validity.broken_metrics import Break, change
from tests.unit.validity.samples import CHILD_ID, START_NS, Sample, set_attribute


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


def empty_record(sample: Sample) -> None:
    sample.record.ClearField("body")


def other_scope(sample: Sample) -> None:
    copy = repeated(sample.traces.resource_spans[0].scope_spans)
    copy.scope.name = "monitel.pipeline"


def repeated_key(sample: Sample) -> None:
    for _ in range(2):
        set_attribute(sample.point("size").attributes, "split")


def parent_in_another_trace(sample: Sample) -> None:
    sample.child.trace_id = bytes(15) + b"\7"


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
    "log.event": empty_record,
}

TRACES: dict[str, Break] = {
    "span.ids": child(span_id=bytes(8)),
    "span.duplicate": lambda sample: repeated(sample.spans, name="other"),
    "span.time": child(end_time_unix_nano=START_NS - 1),
    "span.name": child(name=""),
    "span.kind": child(kind=0),
    "span.status": lambda sample: setattr(sample.child.status, "code", 1),
    "span.parent": child(parent_span_id=b"unknown!"),
    "span.parent.trace": parent_in_another_trace,
    "span.cycle": change(lambda sample: sample.root, parent_span_id=CHILD_ID),
    "span.within": child(end_time_unix_nano=START_NS + 10),
    "span.link": lambda sample: setattr(sample.child.links[0], "trace_id", b""),
    "span.event": lambda sample: setattr(sample.child.events[0], "name", ""),
    "span.dropped": child(dropped_events_count=1 << 31),
}
