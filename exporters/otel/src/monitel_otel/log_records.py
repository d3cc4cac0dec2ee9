"""Conversion of events to OpenTelemetry log records, and the count of exceptions of the application's providers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import recordable, text_of
from monitel.clock import timestamp_ns
from monitel.counter import own_counter
from monitel.process.failures import pass_on, warn_once
from monitel.text import json_value
from monitel_otel._compat import SeverityNumber
from monitel_otel.names import with_sent_names

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from monitel_otel._compat import Logger

_log = logging.getLogger("monitel.otel")


def write_event(logger: Logger, event: monitel.Event, context: Context | None) -> None:
    """Emit an event as a log record. The name is the body, too: many backends ignore the event name.

    A value that the protocol cannot hold, because ``event.data`` was changed after its check, is left out.
    """
    severity = SeverityNumber(event.severity)
    body: Any = event.name
    attributes: dict[str, Any] = {} if event.step is None else {"training.step": event.step}
    if isinstance(event, monitel.RunConfig):
        body = json_value(event.config)
    else:
        data = recordable(dict(event.data), lambda key, _value: _warn_once(event.name, text_of(key)))
        if isinstance(event, monitel.LoggedNumbers):
            body = json_value(data)
            attributes |= event.attributes
        else:
            attributes |= data
    logger.emit(
        timestamp=timestamp_ns(event.timestamp),
        context=context,
        severity_number=severity,
        severity_text=severity.name,
        body=body,
        attributes=with_sent_names(attributes),
        event_name=event.name,
    )


def _warn_once(name: str, key: str) -> None:
    warn_once(_log, "event %r: %r cannot be an attribute and is left out", name, key, key=name)


def count_failure() -> None:
    """Count an exception of the application's providers, which must not stop the training; log the first one."""
    pass_on()
    failed = own_counter("monitel.otel.failed", "{item}", "Items with which a provider failed")
    if not failed.total:
        _log.exception("a provider of the application failed (further exceptions are only counted)")
    failed.add()
