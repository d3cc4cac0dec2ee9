"""Conversion of the SDK's log records to plain values, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import TraceFlags

from monitel_otlp._compat import LogRecord, ReadableLogRecord, SeverityNumber
from monitel_otlp.messages.attributes import plain_value
from monitel_otlp.raw.sdk_values import bounded, integer, plain_bounded, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.raw.sdk_values import Owners


def plain_record(record: ReadableLogRecord, owners: Owners) -> tuple[Any, ...]:
    """Return a log record as exact built-in values.

    Raises:
        TypeError: The protocol cannot hold its body.
    """
    inner = record.log_record
    severity = inner.severity_number
    attributes, dropped = plain_bounded(inner.attributes)
    return (
        owners.number(record.resource),
        owners.number(record.instrumentation_scope),
        integer(inner.timestamp),
        integer(inner.observed_timestamp),
        integer(inner.trace_id),
        integer(inner.span_id),
        int(inner.trace_flags),
        text(inner.severity_text),
        None if severity is None else int(severity.value),
        plain_value(inner.body),
        attributes,
        dropped,
        text(inner.event_name),
    )


def record_of(plain: Sequence[Any], owners: Sequence[Any]) -> ReadableLogRecord:
    """Return a log record from its plain values."""
    resource, scope, timestamp, observed, trace_id, span_id, flags, *more = plain
    severity_text, severity, body, attributes, dropped, event_name = more
    record = LogRecord(
        timestamp=timestamp,
        observed_timestamp=observed,
        severity_text=severity_text,
        severity_number=None if severity is None else SeverityNumber(severity),
        body=body,
        attributes=bounded(attributes, dropped),
        event_name=event_name,
    )
    record.observed_timestamp = observed
    record.trace_id, record.span_id, record.trace_flags = trace_id, span_id, TraceFlags(flags)
    return ReadableLogRecord(record, owners[resource], owners[scope])
