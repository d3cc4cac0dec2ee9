"""The names of processes, and their events, as they are shown."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from monitel.console.autopsy.findings import Identity, PastEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.blackbox.forms import LogRecord

_MOST = 1000  # values of an event


def event_of_plain(plain: LogRecord) -> PastEvent:
    """Return a log record of a journal as an event. A body that is a mapping becomes part of the data."""
    step = {} if plain.step is None else {"training.step": plain.step}
    data = _few({**(plain.body if isinstance(plain.body, dict) else {}), **step, **plain.attributes})
    if isinstance(plain.body, str):
        data = {"message": plain.body, **data}
    return PastEvent(plain.time_ns or plain.observed_ns, plain.severity, plain.name or plain.scope or "log", data)


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
