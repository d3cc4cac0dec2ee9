"""Events, and records of Python's logging, as log records of the protocol."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates, recordable, text_of
from monitel.blackbox.forms import LogRecord
from monitel_otel.scope import SCOPE
from monitel_otlp._compat import SeverityNumber, log_record_limits
from monitel_otlp.messages.attributes import Limits, write_attributes, write_value
from monitel_otlp.messages.request import Encoder, write_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.blackbox.record import Item

_log = logging.getLogger("monitel.otlp")

_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2
_WITH_LISTS = {"process.died"}  # made by monitel itself; what an application emits has no lists


class LogsEncoder(Encoder):
    """Writes log records with the same fields as :class:`monitel_otel.log_records.LogRecords` and the SDK.

    Attributes have the SDK's limits, a structured body has none. Attributes that the protocol cannot hold, because
    ``event.data`` was changed after its check, are left out, with a warning for each name.
    """

    def __init__(self, resource: bytes) -> None:
        super().__init__("logs", resource)
        limits = log_record_limits()
        count, length = limits.max_log_record_attributes, limits.max_log_record_attribute_length
        self._limits = Limits("event", count, length)
        self._warned: set[str] = set()

    def _write(self, items: Sequence[Item], resource: Any, _draft: None) -> int:
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
            sound = recordable(attributes, lambda key, _value: self._warn_once(name, text_of(key)))
            self._write_attributes(plain, sound, name, record)

    def _warn_once(self, name: str, key: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("event %r: %r cannot be an attribute and is left out", name, key)
