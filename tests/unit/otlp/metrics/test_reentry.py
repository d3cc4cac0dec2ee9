"""A garbage collection anywhere in the queue of windows may destruct a Stat, which logs its last window there."""

from __future__ import annotations

import inspect
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE

import monitel
from monitel import COUNT
from monitel_otlp.metrics import series, window_queue
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Callable


def window(end_ns: int = 1, *, name: str = "x", **attributes: Any) -> monitel.Window:
    """Return a window of one sample."""
    definition = monitel.StatDefinition(name, (COUNT,), "", "", MappingProxyType(attributes), monotonic=False)
    return monitel.Window(definition, 0, end_ns, 1, 1.0, 1.0, 1.0, 1.0, 0, None, None)


class Meddler(str):  # noqa: SLOT000  each has its own callback
    """An attribute value whose comparison puts a window, as the destruction of a Stat during ``put`` does."""

    meddle: Callable[[], None]
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        self.meddle()
        return str.__eq__(self, other)


def test_put_is_reentrant() -> None:
    """In the same thread: no deadlock, and nothing is lost."""
    queue: Any = WindowQueue(10)
    once = [lambda: queue.put(window(name="collected"))]

    def meddle() -> None:
        if once:
            once.pop()()

    def put_two() -> None:
        for _ in range(2):
            split = Meddler("val")
            split.meddle = meddle
            queue.put(window(split=split))

    thread = Thread(target=put_two, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not once
    assert ["collected", "x", "x"] == sorted(entry.window.name for entry in queue.queue.take(10))


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
