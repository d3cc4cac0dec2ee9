"""Queue of windows: order, totals, drops and threads."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.inbox import DEADLINE

import monitel
from monitel.aggregation import TORCHS
from monitel_otlp.metrics import series, window_queue
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MILLISECOND_NS = 1_000_000


def window(
    value: float = 1.0, end_ns: int = 1, *, name: str = "x", count: int = 1, attributes: Mapping[str, Any] | None = None
) -> monitel.Window:
    """Return a window of ``count`` samples with the same value."""
    definition = monitel.StatDefinition(name, TORCHS, "", "", MappingProxyType(dict(attributes or {})), monotonic=False)
    return monitel.Window(definition, 0, end_ns, count, value * count, value, value, value, 0, None, None)


def test_windows_are_taken_in_order() -> None:
    """First in, first out; take() returns at most the requested number."""
    queue: Any = WindowQueue(10)
    for end_ns in range(5):
        queue.put(window(end_ns=end_ns))
    assert [0, 1, 2] == [entry.window.end_ns for entry in queue.queue.take(3)]
    assert [3, 4] == [entry.window.end_ns for entry in queue.queue.take(3)]
    assert [] == queue.queue.take(3)
    assert 0 == queue.queue.counts().dropped


def test_full_queue_drops_the_oldest_and_keeps_totals() -> None:
    """Dropped windows have no points, but their samples are in the totals."""
    queue: Any = WindowQueue(3)
    for value in range(10):
        queue.put(window(float(value), value))
    assert 3 == len(queue)
    assert [(8, 28.0), (9, 36.0), (10, 45.0)] == [(each.total_count, each.total_sum) for each in queue.queue.take(10)]
    assert 7 == queue.queue.counts().dropped


class Meddler(str):  # noqa: SLOT000  each has its own callback
    """An attribute value whose comparison puts a window, as the destruction of a Stat during ``put`` does."""

    meddle: Callable[[], None]
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        self.meddle()
        return str.__eq__(self, other)


def test_put_is_reentrant() -> None:
    """A garbage collection during ``put`` may destruct a Stat in the same thread: no deadlock, and nothing is lost."""
    queue: Any = WindowQueue(10)
    once = [lambda: queue.put(window(name="collected"))]

    def meddle() -> None:
        if once:
            once.pop()()

    def put_two() -> None:
        for _ in range(2):
            split = Meddler("val")
            split.meddle = meddle
            queue.put(window(attributes={"split": split}))

    thread = Thread(target=put_two, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not once
    assert ["collected", "x", "x"] == sorted(entry.window.name for entry in queue.queue.take(10))


@pytest.mark.parametrize("created", [series.Series, window_queue.Entry])
def test_window_put_by_a_garbage_collection_is_counted_in_order(
    created: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object that ``put`` creates may start a collection, which destructs a Stat of the same name."""
    queue: Any = WindowQueue(10)
    pending = [1, 2, 3]

    def create(*args: Any, **named: Any) -> object:
        if pending:
            queue.put(window(end_ns=pending.pop()))
        return created(*args, **named)

    monkeypatch.setattr(inspect.getmodule(created), created.__name__, create)
    for end_ns in range(4, 7):
        queue.put(window(end_ns=end_ns))
    entries = queue.queue.take(10)
    assert list(range(1, 7)) == sorted(entry.window.end_ns for entry in entries)
    assert list(range(1, 7)) == [entry.total_count for entry in entries]
    assert [float(total) for total in range(1, 7)] == [entry.total_sum for entry in entries]
    assert 1 == len({id(entry.series) for entry in entries})


def test_concurrent_put_and_take_lose_nothing() -> None:
    """Four threads put and one takes: each window is taken once, and the last total is exact."""
    queue: Any = WindowQueue(100_000)

    def put_many() -> None:
        for _ in range(2000):
            queue.put(window())

    threads = [Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads):
        taken += queue.queue.take(100)
    taken += queue.queue.take(100_000)
    assert list(range(1, 8001)) == [entry.total_count for entry in taken]


samples = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.1])
steps = st.integers(-2 * MILLISECOND_NS, 3 * MILLISECOND_NS) | st.just(0)
batches = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), samples, steps, st.integers(1, 5)), max_size=8), max_size=5
)


@given(batches)
def test_points_of_any_windows_are_acceptable_to_every_backend(
    batches: list[list[tuple[str, float, int, int]]],
) -> None:
    """Across requests times ascend by at least 1 ms, counts rise to the number of samples, and sums are finite."""
    queue, mapping = WindowQueue(1000), WindowMapping("cumulative", 0)
    now_ns, counts, sums = 10**18, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}
    found: dict[str, list[Any]] = {}
    for batch in batches:
        for name, value, step, count in batch:
            now_ns += step
            closed = window(value, now_ns, name=name, count=count)
            queue.put(closed)
            counts[name] += count
            sums[name] += closed.sum if math.isfinite(closed.sum) else 0.0
        points = Points()
        mapping.write(queue.queue.take(1000), points)
        for metric in points.request.resource_metrics[0].scope_metrics[0].metrics:
            found.setdefault(metric.name, []).extend(metric.sum.data_points or metric.gauge.data_points)
    for own in found.values():
        times = [point.time_unix_nano for point in own]
        assert all(later - earlier >= MILLISECOND_NS for earlier, later in pairwise(times))
    for name in {name for batch in batches for name, *_rest in batch}:
        totals = [point.as_int for point in found[f"{name}.count"]]
        assert sorted(totals) == totals
        assert counts[name] == totals[-1]
        assert sums[name] == found[f"{name}.sum"][-1].as_double
