"""The names of processes, and their events, from messages of the protocol."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from monitel_otlp.autopsy.findings import Identity, PastEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    from monitel_otlp.logs.mapping import PlainEvent
    from monitel_otlp.messages.request import FrozenRequest

_MOST = 1000  # values of an event


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return the attributes of a message as built-in values."""
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(message: AnyValue) -> Any:
    """Return the value of an attribute, or of the body of a log record, as a built-in value."""
    kind = message.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [value_of(each) for each in message.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(message.kvlist_value.values)
    return getattr(message, kind)


def records_of(request: FrozenRequest) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the attributes of the resource, and the message, of each log record in a request."""
    for resource_logs in request.message().resource_logs:  # type: ignore[attr-defined]
        resource = attributes_of(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                yield resource, record


def event_of(record: Any) -> PastEvent:
    """Return a log record as an event. A body that is a mapping becomes part of the data."""
    body = value_of(record.body)
    data = _few({**(body if isinstance(body, dict) else {}), **attributes_of(record.attributes)})
    if isinstance(body, str) and body != record.event_name:
        data = {"message": body, **data}
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    return PastEvent(time_ns, record.severity_number, record.event_name or "log", data)


def event_of_plain(plain: PlainEvent) -> PastEvent:
    """Return an event from its plain values, or a log record by the name of its logger.

    A body that is a mapping becomes part of the data.
    """
    time_ns, observed_ns, severity, name, body, attributes, _, _, _, _, *of_logger = plain
    if of_logger:
        name, body = of_logger[0], body if isinstance(body, dict) else {"message": body}
    data = _few({**(body if isinstance(body, dict) else {}), **attributes})
    return PastEvent(time_ns or observed_ns, severity, name, data)


def _few(data: dict[str, Any]) -> dict[str, Any]:
    """Return the first thousand values: an event is shown, and not processed."""
    if len(data) <= _MOST:
        return data
    return {**dict(islice(data.items(), _MOST)), "...": f"{len(data) - _MOST:,} more"}


def identity_of(attributes: Mapping[str, Any]) -> Identity:
    """Return the names that a resource has."""
    return Identity(
        pid=whole(attributes.get("process.pid")),
        host=_text(attributes.get("host.name")),
        service=_text(attributes.get("service.name")),
        run=_text(attributes.get("training.run.id")),
        rank=whole(attributes.get("training.rank")),
        local_rank=whole(attributes.get("training.local_rank")),
        world_size=whole(attributes.get("training.world_size")),
        attempt=whole(attributes.get("training.attempt")),
    )


def whole(value: object) -> int | None:
    """Return a value that is an integer, or the text of one; None for any other."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:  # noqa: PLR2004  64 bits
        return int(value)
    return None


def _text(value: object) -> str:
    return "" if value is None else str(value)
