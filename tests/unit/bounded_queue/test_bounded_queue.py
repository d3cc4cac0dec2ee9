"""The bounded queue: limits, sizes, counts and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeQueue = Callable[..., Any]

ITEM = 128  # bytes of an item without a payload
OBJECT = 64  # bytes of an object in a payload, without its text


def test_items_come_out_in_order(make_queue: MakeQueue) -> None:
    """take() removes at most as many items as asked for, oldest first."""
    queue = make_queue()
    for item in range(5):
        queue.put(item)
    assert [0, 1] == queue.take(2)
    assert [] == queue.take(0)
    assert [] == queue.take(-1)
    assert (5, 0, 3) == queue.counts()
    assert [2, 3, 4] == queue.take(10**30)
    assert [] == queue.take(1)
    assert (5, 0, 0) == queue.counts()


def test_counts_have_names(make_queue: MakeQueue, monitel: ModuleType) -> None:
    """counts() returns a named tuple of integers."""
    queue = make_queue(1)
    queue.put("a")
    queue.put("b")
    assert "QueueCounts(recorded=2, dropped=1, waiting=1)" == repr(queue.counts())
    assert isinstance(queue.counts(), monitel.bounded_queue.QueueCounts)


def test_oldest_items_are_dropped_first(make_queue: MakeQueue) -> None:
    """A full queue drops and counts the oldest item for each new one."""
    evicted: list[int] = []
    queue = make_queue(3, evicted=evicted.append)
    for item in range(10):
        queue.put(item)
    assert [0, 1, 2, 3, 4, 5, 6] == evicted
    assert (10, 7, 3) == queue.counts()
    assert [7, 8, 9] == queue.take(5)


def test_queue_is_bounded_by_bytes(make_queue: MakeQueue) -> None:
    """At the byte limit, the queue drops as many of the oldest items as the new one needs."""
    evicted: list[str] = []
    queue = make_queue(max_bytes=1000, evicted=evicted.append)
    for item in "abcd":
        queue.put(item, 250)
    assert (4, 0, 4) == queue.counts()
    queue.put("e", 1)
    assert ["a"] == evicted
    queue.put("f", 700)
    assert ["a", "b", "c"] == evicted
    assert 951 == queue.weight_bytes
    assert ["d", "e", "f"] == queue.take(9)
    assert 0 == queue.weight_bytes


def test_one_large_item_replaces_hundreds(make_queue: MakeQueue) -> None:
    """An item that is as large as the queue replaces all others."""
    evicted: list[int] = []
    queue = make_queue(max_bytes=1000, evicted=evicted.append)
    for item in range(1000):
        queue.put(item, 1)
    queue.put("all of it", 1000)
    assert list(range(1000)) == evicted
    assert (1001, 1000, 1) == queue.counts()
    assert ["all of it"] == queue.take(2)


def test_item_larger_than_the_queue_is_dropped_itself(make_queue: MakeQueue) -> None:
    """An item above max_bytes is recorded and dropped; the other items stay."""
    evicted: list[str] = []
    queue = make_queue(max_bytes=1000, evicted=evicted.append)
    queue.put("small", 10)
    queue.put("huge", 1001)
    queue.put("longer than int64", 1 << 70)
    assert ["huge", "longer than int64"] == evicted
    assert (3, 2, 1) == queue.counts()
    assert 10 == queue.weight_bytes


class _Text(str):
    """A str whose __len__ is too small."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0


class _Dict(dict[Any, Any]):
    """A dict whose methods all raise."""

    def _raise(self, *_: Any) -> Any:
        raise ValueError

    __iter__ = __len__ = keys = values = items = copy = _raise


class _Disguised:
    """An object whose __class__ raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ValueError

    def __len__(self) -> int:
        raise ValueError


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (None, ITEM),
        (0, 0),
        (17, 17),
        (True, 1),
        (-5, 0),
        (-(1 << 70), 0),
        (1.5, ITEM + OBJECT),
        ("", ITEM + OBJECT),
        ("x" * 1000, ITEM + OBJECT + 1000),
        ("é" * 1000, ITEM + OBJECT + 4000),
        (b"\xff" * 1000, ITEM + OBJECT + 1000),
        ({"ab": "cde"}, ITEM + 3 * OBJECT + 5),
        ({"ab": 1, 3: None}, ITEM + 5 * OBJECT + 2),
        (["ab", ("c", b"d")], ITEM + 5 * OBJECT + 4),
        ({"a": {"b": ["c"]}}, ITEM + 6 * OBJECT + 3),
        (_Text("xyz"), ITEM + OBJECT + 3),
        (_Dict({"a": "b"}), ITEM + 3 * OBJECT + 2),
        (_Disguised(), ITEM + OBJECT),
        ([_Disguised()], ITEM + 2 * OBJECT),
        ({1, 2, 3}, ITEM + OBJECT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_size_is_estimated_from_the_payload(make_queue: MakeQueue, payload: object, expected: int) -> None:
    """Text and bytes count by their length, with a constant for each object; no method of a payload is called."""
    queue = make_queue()
    queue.put("item", payload)
    assert expected == queue.weight_bytes


def test_payload_that_contains_itself_has_a_size(make_queue: MakeQueue) -> None:
    """Estimates stop at a depth and at the limit, so that a recursive payload has a size."""
    lonely: list[Any] = []
    lonely.append(lonely)
    wide: list[Any] = []
    wide.extend([wide] * 1000)
    queue = make_queue(max_bytes=100_000)
    queue.put("lonely", lonely)
    assert ITEM + 9 * OBJECT == queue.weight_bytes
    queue.put("wide", wide)
    assert (2, 1, 1) == queue.counts()


def test_wake_is_called_at_half(make_queue: MakeQueue) -> None:
    """wake() is called when the queue is half full, and again only after a take() that left less than half."""
    woken: list[int] = []
    queue: Any = make_queue(10, wake=lambda: woken.append(len(queue)))
    for item in range(20):
        queue.put(item)
    assert [5] == woken
    queue.take(5)
    queue.put(20)
    assert [5] == woken, "take() left half"
    queue.take(2)
    queue.put(21)
    assert [5, 5] == woken
    queue.take(100)
    assert [5, 5] == woken


def test_wake_is_called_at_half_of_the_bytes(make_queue: MakeQueue) -> None:
    """wake() is called when half of the bytes are used, even if one item has all of them."""
    woken: list[int] = []
    queue: Any = make_queue(max_bytes=1001, wake=lambda: woken.append(queue.weight_bytes))
    queue.put("a", 500)
    assert [] == woken
    queue.put("b", 1)
    queue.put("c", 400)
    assert [501] == woken
    queue.take(3)
    queue.put("d", 1001)
    assert [501, 1001] == woken


def test_smallest_queue_wakes_for_each_item(make_queue: MakeQueue) -> None:
    """A queue with a limit of one item is half full with it."""
    woken: list[None] = []
    queue = make_queue(1, wake=lambda: woken.append(None))
    queue.put(1)
    queue.put(2)
    queue.take(1)
    queue.put(3)
    assert 2 == len(woken)


def test_callbacks_may_use_the_queue(make_queue: MakeQueue) -> None:
    """Callbacks run after the step: the queue is consistent, and they may put and take."""
    seen: list[Any] = []

    def evicted(item: int) -> None:
        seen.append((item, *queue.counts(), len(queue)))
        if item < 3:
            queue.put(item + 100)

    def wake() -> None:
        seen.append(queue.take(1))

    queue = make_queue(2, wake=wake, evicted=evicted)
    for item in range(6):
        queue.put(item)
    assert [[0], [1], [2]] == seen[:3]
    queue = make_queue(2, evicted=evicted)
    seen.clear()
    for item in range(4):
        queue.put(item)
    assert [(0, 3, 1, 2, 2), (1, 4, 2, 2, 2), (2, 5, 3, 2, 2), (100, 6, 4, 2, 2), (101, 7, 5, 2, 2)] == seen
    assert [102, 3] == queue.take(3)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_failing_callbacks_do_not_reach_the_caller(
    make_queue: MakeQueue, unraisable: list[BaseException | None], kind: type[BaseException]
) -> None:
    """An exception of a callback goes to sys.unraisablehook, and the callback is still called for each item."""
    failed: list[object] = []

    def fail(*item: object) -> None:
        failed.append(item)
        raise kind

    queue = make_queue(1, wake=fail, evicted=fail)
    for item in "abc":
        queue.put(item)
    assert [(), ("a",), ("b",)] == failed
    assert [kind] * 3 == [type(error) for error in unraisable]
    assert (3, 2, 1) == queue.counts()


@pytest.mark.parametrize("limits", [(0, 1), (1, 0), (-1, 1)])
def test_limits_are_at_least_one(make_queue: MakeQueue, limits: tuple[int, int]) -> None:
    """A limit below 1 is a ValueError."""
    with pytest.raises(ValueError, match=f"must be at least 1, got {limits[0]} and {limits[1]}"):
        make_queue(*limits)


def test_wrong_arguments_are_type_errors(make_queue: MakeQueue) -> None:
    """Errors of put() name the wrong argument, as those of Python functions do."""
    queue = make_queue()
    calls: list[tuple[Callable[[], object], str]] = [
        (queue.put, "missing 1 required positional argument: 'item'"),
        (lambda: queue.put(1, 2, 3), "takes from 2 to 3 positional arguments but 4 were given"),
        (lambda: queue.put(1, item=2), "got multiple values for argument 'item'"),
        (lambda: queue.put(1, size=2), "got an unexpected keyword argument 'size'"),
        (lambda: queue.take("1"), "'str' object cannot be interpreted as an integer"),
        (lambda: make_queue(1.5), "'float' object cannot be interpreted as an integer"),
    ]
    for call, output in calls:
        with pytest.raises(TypeError, match=output):
            call()
    queue.put(payload=5, item="by keyword")
    assert (5, ["by keyword"]) == (queue.weight_bytes, queue.take(1))


def test_type_takes_parameters(make_queue: MakeQueue) -> None:
    """BoundedQueue[int] is an annotation in both twins."""
    assert "BoundedQueue[int]" in repr(type(make_queue())[int])


def test_missing_extension_leaves_the_python_twin(run_script: Any) -> None:
    """Without the extension, the Python twin is used."""
    ended = run_script(
        'sys.modules["monitel._bounded_queue_c"] = None\n'
        "from monitel.bounded_queue import BoundedQueue\n"
        "say(BoundedQueue.__module__)\n"
    )
    assert ["monitel._bounded_queue_py"] == ended.lines
