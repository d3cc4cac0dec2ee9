"""Conversion of events to OpenTelemetry log records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import recordable, text_of
from monitel.clock import timestamp_ns
from monitel.counter import own_counter
from monitel_otel._compat import SeverityNumber

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from monitel_otel._compat import Logger

_log = logging.getLogger("monitel.otel")


class EventFields:
    """Body and attributes of the log record of an event.

    A value that the protocol cannot hold, because ``event.data`` was changed after its check, is left out.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def of(self, event: monitel.Event, step: int | None) -> tuple[Any, dict[str, Any]]:
        """Return the body, None for the name of the event, and the attributes, with the training step if known."""
        attributes: dict[str, Any] = {} if step is None else {"training.step": step}
        if isinstance(event, monitel.RunConfig):
            return event.config, attributes
        found = recordable(dict(event.data), lambda key, _value: self._warn_once(event.name, text_of(key)))
        if isinstance(event, monitel.LoggedNumbers):
            return found, {**attributes, **event.attributes}
        return None, {**attributes, **found} if attributes else found

    def _warn_once(self, name: str, key: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("event %r: %r cannot be an attribute and is left out", name, key)


def write_event(logger: Logger, fields: EventFields, event: monitel.Event, context: Context | None) -> None:
    """Emit an event as a log record. The name is the body, too: many backends ignore the event name."""
    severity = SeverityNumber(event.severity)
    body, attributes = fields.of(event, event.step)
    logger.emit(
        timestamp=timestamp_ns(event.timestamp),
        context=context,
        severity_number=severity,
        severity_text=severity.name,
        body=event.name if body is None else body,
        attributes=attributes,
        event_name=event.name,
    )


def count_failure() -> None:
    """Count an exception of the application's providers, which must not stop the training; log the first one."""
    failed = own_counter("monitel.otel.failed", "{item}", "Items with which a provider failed")
    if not failed.total:
        _log.exception("a provider of the application failed (further exceptions are only counted)")
    failed.add()
