"""Mapping of events to log records of the protocol."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates, recordable, text_of
from monitel_otlp._compat import SeverityNumber, log_record_limits
from monitel_otlp.messages.attributes import Limits, write_attributes, write_scalars, write_value

if TYPE_CHECKING:
    from monitel.blackbox.forms import LogRecord

_log = logging.getLogger("monitel.otlp")

_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2


_WITH_LISTS = {"process.died"}  # made by monitel itself; what an application emits has no lists


class EventMapping:
    """Turns events into log records, with the same fields as :class:`monitel_otel.records.Records` and the SDK.

    Attributes beyond the limits are dropped, and long texts are truncated, like in the SDK. A structured body has no
    limits. Attributes that the protocol cannot hold, because ``event.data`` was changed after its check, are left out,
    with a warning for each name.
    """

    def __init__(self) -> None:
        limits = log_record_limits()
        count, length = limits.max_log_record_attributes, limits.max_log_record_attribute_length
        self._limits = Limits("event", count, length)
        self._warned: set[str] = set()

    def write(self, plain: LogRecord, record: Any) -> None:
        """Fill a new log record of the protocol.

        Raises:
            Exception: A value is not one of a log record.
        """
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
        attributes = plain.attributes
        if plain.step is not None:
            attributes = {"training.step": plain.step, **attributes}
        if self._limits.exceeded(len(attributes)) or not write_scalars(record.attributes, attributes):
            self._write_odd(plain, name, record)
        if plain.flags:
            record.flags = plain.flags
        if plain.trace_id:
            record.trace_id = plain.trace_id
            record.span_id = plain.span_id

    def _write_odd(self, plain: LogRecord, name: str, record: Any) -> None:
        """Write attributes that are more than usual, or of other types."""
        attributes = plain.attributes
        if not (plain.scope or name in _WITH_LISTS):
            attributes = recordable(attributes, lambda key, _value: self._warn_once(name, text_of(key)))
        if plain.step is not None:
            attributes = {"training.step": plain.step, **attributes}
        if self._limits.exceeded(len(attributes)):
            attributes = dict(attributes)
            if dropped := self._limits.apply(name, attributes):
                record.dropped_attributes_count = dropped
        write_attributes(record.attributes, attributes)

    def _warn_once(self, name: str, key: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("event %r: %r cannot be an attribute and is left out", name, key)
