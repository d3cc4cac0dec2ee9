"""Requests: items ``i`` to ``j`` of a journal, encoded for a backend. A request is split by items, too.

Ranges and readings are in the journals as encoded messages, events as plain values; windows have a separate module.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.attributes import escape_surrogates, recordable, text_of
from monitel.blackbox.forms import LogRecord
from monitel.process.failures import warn_once
from monitel_otel.scope import SCHEMA_URL, SCOPE
from monitel_otlp._compat import SeverityNumber, log_record_limits
from monitel_otlp.messages.attributes import Limits, plain_attributes, write_attributes, write_value

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from monitel.blackbox.record import Item
    from monitel_otlp.metrics.totals import Draft

_log = logging.getLogger("monitel.otlp")

REQUESTS: dict[str, type[Any]] = {
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
RESOURCES = {"metrics": "resource_metrics", "logs": "resource_logs", "traces": "resource_spans"}

_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2
_WITH_LISTS = {"process.died"}  # made by monitel itself; what an application emits has no lists


@dataclass(frozen=True, slots=True)
class Request:
    """Items of a journal as one message. It has neither address nor headers, so it contains no token."""

    signal: str
    body: bytes  # not compressed; empty if there is nothing to send for the items
    items: Sequence[Item] = ()
    records: int = 0  # points, log records or spans
    draft: Draft | None = None  # the running totals after it, of metrics

    @property
    def number(self) -> int:
        return sum(item.items for item in self.items)


def write_spans(items: Sequence[Item], resource: Any, _draft: None = None) -> int:
    """Add spans, which are encoded already."""
    scope = resource.scope_spans.add()
    write_scope(scope)
    for item in items:
        for content in item.value:
            scope.spans.add().ParseFromString(content)
    return len(scope.spans)


def write_reading(items: Sequence[Item], resource: Any, _draft: None = None) -> int:
    """Add a reading, which is encoded already."""
    content, points, _ = items[0].value
    resource.MergeFromString(content)
    return int(points)


class LogRecordWriter:
    """Writes log records with the same fields as :class:`monitel_otel.log_records.LogRecords` and the SDK.

    Attributes have the SDK's limits, a structured body has none. Attributes that the protocol cannot hold, because
    ``event.data`` was changed after its check, are left out, with a warning for each name.
    """

    def __init__(self) -> None:
        limits = log_record_limits()
        count, length = limits.max_log_record_attributes, limits.max_log_record_attribute_length
        self._limits = Limits("event", count, length)

    def write(self, items: Sequence[Item], resource: Any, _draft: None = None) -> int:
        of_scope: dict[str, Any] = {}
        for item in items:
            plain = LogRecord(*item.value)
            found = of_scope.get(plain.scope)
            if found is None:
                scope = resource.scope_logs.add()
                write_scope(scope, (plain.scope, "", "") if plain.scope else SCOPE)
                found = of_scope[plain.scope] = scope.log_records
            self._write_record(plain, found.add())
        return len(items)

    def _write_record(self, plain: LogRecord, record: Any) -> None:
        name = escape_surrogates(plain.name)
        record.time_unix_nano = plain.time_ns
        record.observed_time_unix_nano = plain.observed_ns
        record.severity_number = plain.severity
        record.severity_text = plain.severity_text or _SEVERITY_TEXTS.get(plain.severity, "")
        if name:
            record.event_name = name
        if plain.body is None:
            record.body.string_value = name
        else:
            write_value(record.body, plain.body)
        self._write_attributes(plain, plain.attributes, name, record)
        if plain.flags:
            record.flags = plain.flags
        if plain.trace_id:
            record.trace_id = plain.trace_id
            record.span_id = plain.span_id

    def _write_attributes(self, plain: LogRecord, attributes: dict[str, Any], name: str, record: Any) -> None:
        has_lists = plain.scope or name in _WITH_LISTS
        found = attributes if plain.step is None else {"training.step": plain.step, **attributes}
        if self._limits.exceeded(len(found)):
            found = dict(found)
            if dropped := self._limits.apply(name, found):
                record.dropped_attributes_count = dropped
        try:
            if "" in attributes and not has_lists:
                raise ValueError("an attribute has no name")
            write_attributes(record.attributes, found, scalars=not has_lists)
        except (TypeError, ValueError):
            if has_lists:
                raise
            del record.attributes[:]

            def warn(key: object, _value: object) -> None:
                warn_once(_log, "event %r: %r cannot be an attribute and is left out", name, text_of(key), key=name)

            sound = recordable(attributes, warn)
            self._write_attributes(plain, sound, name, record)


def write_scope(target: Any, scope: tuple[str, str, str] = SCOPE) -> None:
    """Fill the header of a ``ScopeMetrics``, ``ScopeLogs`` or ``ScopeSpans`` with name, version and schema."""
    target.scope.name, target.scope.version, target.schema_url = scope


def identity_of(resource: Resource) -> dict[str, Any]:
    """Return a resource as the identity of a process has it: encoded with its schema, and its attributes.

    It is a serialized ``ResourceMetrics`` without metrics, which has the same form as a ``ResourceLogs`` without log
    records, and a ``ResourceSpans`` without spans.
    """
    attributes = plain_attributes(resource.attributes)
    message = ResourceMetrics(schema_url=resource.schema_url or SCHEMA_URL)
    message.resource.SetInParent()
    write_attributes(message.resource.attributes, attributes)
    return {"resource": message.SerializeToString(), "attributes": attributes}
