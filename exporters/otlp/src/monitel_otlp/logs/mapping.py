"""Mapping of events to log records of the protocol."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates, recordable, text_of
from monitel_otel.records import timestamp_ns
from monitel_otlp._compat import SeverityNumber, log_record_limits
from monitel_otlp.messages.attributes import Limits, plain_value, write_attributes, write_value

if TYPE_CHECKING:
    from monitel.blackbox.forms import LogRecord
    from monitel_otlp.messages.attributes import Plain

_log = logging.getLogger("monitel.otlp")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  subtracted from naive datetimes
_MICROSECOND = timedelta(microseconds=1)
_BLOCK = timedelta(minutes=15)
_LATEST_NS = 2**64 - 1  # the field of the protocol is unsigned, 64 bits


class Timestamps:
    """Converts datetimes to Unix ns, like :func:`monitel_otel.records.timestamp_ns` but ten times as fast.

    Naive datetimes are local time. Their offset from UTC is cached for a quarter of an hour if the offset is the same
    at both ends and for both values of ``fold``; otherwise the clocks change in between. :func:`time.tzset` invalidates
    the cache.
    """

    def __init__(self) -> None:
        nothing = datetime.min  # noqa: DTZ901  an empty block
        self._block: tuple[datetime, datetime, int, object] = nothing, nothing, 0, None

    def ns(self, timestamp: datetime) -> int:
        """Return nanoseconds since the Unix epoch, limited to the range of the protocol."""
        try:
            if timestamp.tzinfo is not None:
                elapsed_ns = (timestamp - _EPOCH) // _MICROSECOND * 1000
            else:
                begin, end, offset_ns, zone = self._block
                if zone is not time.tzname or not begin <= timestamp < end:  # tzset() makes a new tuple
                    return self._uncached(timestamp)
                elapsed_ns = (timestamp - _LOCAL_EPOCH) // _MICROSECOND * 1000 - offset_ns
        except (TypeError, OverflowError, ValueError):  # a zone without an offset is local time
            return timestamp_ns(timestamp)
        if elapsed_ns < 0:
            return 0
        return elapsed_ns if elapsed_ns <= _LATEST_NS else _LATEST_NS

    def _uncached(self, timestamp: datetime) -> int:
        zone = time.tzname
        begin = timestamp.replace(minute=timestamp.minute // 15 * 15, second=0, microsecond=0, fold=0)
        offsets = {_offset_ns(each.replace(fold=fold)) for each in (begin, begin + _BLOCK) for fold in (0, 1)}
        if len(offsets) == 1:
            self._block = begin, begin + _BLOCK, offsets.pop(), zone
        return timestamp_ns(timestamp)


def _offset_ns(timestamp: datetime) -> int:
    utc = timestamp.astimezone(timezone.utc).replace(tzinfo=None)
    return (timestamp - utc) // _MICROSECOND * 1000


_SEVERITY_TEXTS = {each.value: each.name for each in SeverityNumber}  # 9: INFO, 10: INFO2


_WITH_LISTS = {"process.died"}  # made by monitel itself; what an application emits has no lists


def plain_record(body: Any) -> Plain:
    """Return a structured body as exact built-in values.

    Raises:
        TypeError: The protocol has no such type.
    """
    return plain_value(body)


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
        checked = plain.scope or name in _WITH_LISTS
        attributes = plain.attributes
        if not checked:
            attributes = recordable(attributes, lambda key, _value: self._warn_once(name, text_of(key)))
        if plain.step is not None:
            attributes = {"training.step": plain.step, **attributes}
        if self._limits.exceeded(len(attributes)):
            attributes = dict(attributes)
            if dropped := self._limits.apply(name, attributes):
                record.dropped_attributes_count = dropped
        if attributes:
            write_attributes(record.attributes, attributes)
        if plain.flags:
            record.flags = plain.flags
        if plain.trace_id:
            record.trace_id = plain.trace_id
            record.span_id = plain.span_id

    def _warn_once(self, name: str, key: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("event %r: %r cannot be an attribute and is left out", name, key)
