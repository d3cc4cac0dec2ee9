"""Conversion of events to OpenTelemetry log records."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import fits_int64
from monitel_otel._compat import SeverityNumber

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from monitel_otel._compat import Logger

_log = logging.getLogger("monitel.otel")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LATEST_NS = 2**64 - 1  # the limit of the protocol's field


class Records:
    """Emits each event as a log record: event_name, time in ns, severity, attributes.

    The body is the name, too, because many backends show the body and ignore the event name (Loki before 3.8). The body
    of logged numbers and of a configuration is structured: it has all of them, without limits.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._warned: set[str] = set()

    def write(
        self,
        event: monitel.Event,
        *,
        step: int | None,
        context: Context | None = None,
        observed_ns: int | None = None,
    ) -> None:
        """Emit one event.

        Args:
            event: The event.
            step: The training step when the event was logged, for the attribute ``training.step``.
            context: The context when the event was logged, for trace and span id; None for the current one.
            observed_ns: Time when the event was logged, Unix ns; None for the current time.
        """
        severity = SeverityNumber(event.severity)
        self._logger.emit(
            timestamp=timestamp_ns(event.timestamp),
            observed_timestamp=observed_ns,
            context=context,
            severity_number=severity,
            severity_text=severity.name,
            body=self._body(event),
            attributes=self._attributes(event, step),
            event_name=event.name,
        )

    def _body(self, event: monitel.Event) -> Any:
        if isinstance(event, monitel.LoggedNumbers):
            return self._sendable(event.name, event.data)
        return event.config if isinstance(event, monitel.RunConfig) else event.name

    def _attributes(self, event: monitel.Event, step: int | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {} if step is None else {"training.step": step}
        if isinstance(event, monitel.LoggedNumbers):
            attributes.update(event.attributes)
        elif not isinstance(event, monitel.RunConfig):
            attributes.update(self._sendable(event.name, event.data))
        return attributes

    def _sendable(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that the protocol can hold."""
        found: dict[str, Any] = {}
        for key, value in values.items():
            if _can_be_sent(key, value):
                found[key] = value
            elif name not in self._warned:
                self._warned.add(name)
                _log.warning("event %r: %r cannot be an attribute and is left out", name, key)
        return found


def _can_be_sent(key: object, value: object) -> bool:
    if not isinstance(key, str) or not key:
        return False
    if isinstance(value, int):
        return fits_int64(value)
    return isinstance(value, (str, float))


def timestamp_ns(timestamp: datetime) -> int:
    """Return nanoseconds since the Unix epoch, limited to the protocol's range; a naive datetime is local time."""
    try:
        elapsed = timestamp.astimezone(timezone.utc) - _EPOCH
    except (OverflowError, ValueError):  # a year that the C library cannot convert
        return 0 if timestamp.year < _EPOCH.year else _LATEST_NS
    return min(max(elapsed // timedelta(microseconds=1) * 1000, 0), _LATEST_NS)
