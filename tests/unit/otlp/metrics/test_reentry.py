"""A garbage collection anywhere in the queue of windows may destruct a Stat, which logs its last window there."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import COUNT
from monitel_otlp.metrics import series, window_queue
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Callable


def window(end_ns: int) -> monitel.Window:
    """Return a window of one sample."""
    definition = monitel.StatDefinition("x", (COUNT,), "", "", MappingProxyType({}), monotonic=False)
    return monitel.Window(definition, 0, end_ns, 1, 1.0, 1.0, 1.0, 1.0, 0, None, None)


@pytest.mark.parametrize("created", [series.Series, window_queue.Entry])
def test_window_of_a_garbage_collection_is_counted_in_order(
    created: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object that ``put`` creates may start a collection, which destructs a Stat of the same name."""
    queue: Any = WindowQueue(10)
    pending = [1, 2, 3]

    def create(*args: Any, **named: Any) -> object:
        if pending:
            queue.put(window(pending.pop()))
        return created(*args, **named)

    monkeypatch.setattr(inspect.getmodule(created), created.__name__, create)
    for end_ns in range(4, 7):
        queue.put(window(end_ns))
    entries = queue.queue.take(10)
    assert [*range(1, 7)] == sorted(entry.window.end_ns for entry in entries)
    assert [*range(1, 7)] == [entry.total_count for entry in entries]
    assert 1 == len({id(entry.series) for entry in entries})
