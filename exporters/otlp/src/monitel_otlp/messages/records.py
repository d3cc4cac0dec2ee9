"""The leaves of a request: metric points, log records, spans, in message order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: From a request down to its leaves.
LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics", "data_points"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}


def leaf_lists(message: Any, levels: tuple[str, ...]) -> Iterator[Any]:
    """Yield the repeated fields at the bottom, in order."""
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
        yield from leaf_lists(each, tuple(deeper))


def count_leaves(message: Any, levels: tuple[str, ...]) -> int:
    """Return the number of leaves below a message."""
    return sum(len(leaves) for leaves in leaf_lists(message, levels))
