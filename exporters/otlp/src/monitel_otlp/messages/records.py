"""Records of a request (metric points, log records or spans), in message order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Field names from a request down to its records.
LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics", "data_points"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}


def record_lists(message: Any, levels: tuple[str, ...]) -> Iterator[Any]:
    """Yield the repeated fields that hold the records, in order."""
    level, *deeper = levels
    if level == "data_points":
        kind = message.WhichOneof("data")
        if kind is not None:
            yield getattr(message, kind).data_points
        return
    if not deeper:
        yield getattr(message, level)
        return
    for each in getattr(message, level):
        yield from record_lists(each, tuple(deeper))


def count_records(message: Any, levels: tuple[str, ...]) -> int:
    """Return the number of records below a message."""
    return sum(len(records) for records in record_lists(message, levels))
