"""The bounded queue with interruptions and threads, its memory, and both twins compared."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import tracemalloc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

    MakeQueue = Callable[..., Any]

DEADLINE = 60.0  # seconds


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Switch between threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class _Phoenix:
    """Puts its number into a queue when it is destructed."""

    def __init__(self, queue: Any, number: int) -> None:
        self.queue = queue
        self.number = number

    def __del__(self) -> None:
        self.queue.put(self.number)


def test_destructor_of_a_dropped_item_may_put(make_queue: MakeQueue) -> None:
    """A dropped item is destructed after the step, and its destructor may put another one."""
    queue = make_queue(10)
    for number in range(10):
        queue.put(_Phoenix(queue, number))
    assert (10, 0, 10) == queue.counts()
    queue.put("last")
    assert (21, 11, 10) == queue.counts(), "each destructor's item drops the next phoenix"
    assert ["last", *range(9)] != queue.take(0)
    assert {"last", *range(10)} >= set(queue.take(10))


def test_garbage_collection_may_put(make_queue: MakeQueue) -> None:
    """Destructors that a garbage collection runs anywhere in put() and take() may put; each item is counted."""
    queue = make_queue(50)
    thresholds = gc.get_threshold()
    taken = 0
    gc.set_threshold(1)
    try:
        for number in range(500):
            cycle = [_Phoenix(queue, number)]
            cycle.append(cycle)  # type: ignore[arg-type]
            del cycle
            queue.put(number)
            taken += len(queue.take(number % 4))
            recorded, dropped, waiting = queue.counts()
            assert recorded == taken + dropped + waiting
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    recorded, dropped, waiting = queue.counts()
    assert 1000 == recorded == taken + dropped + waiting


class _Observer:
    """Uses a queue in interruptions, and counts the items."""

    def __init__(self, make_queue: MakeQueue) -> None:
        self.uses = 0
        self.put = 0
        self.taking = 0  # calls of take() that are interrupted
        self.taken: list[int] = []
        self.evicted: list[int] = []
        self.queue = make_queue(7, 7 * 1000, evicted=self.evicted.append)

    def use(self, number: int) -> None:
        """Put, take, and check the counts in turn."""
        self.uses += 1
        if number % 4 < 2:
            self.put += 1
            self.queue.put(self.put, 100 * (number % 23))
        elif number % 4 == 2:
            self.taking += 1
            items = self.queue.take(number % 3)
            self.taken += items
            self.taking -= 1
        self.check()

    def check(self) -> None:
        """Compare the counts with each other, and with the taken items."""
        uses, taken = self.uses, len(self.taken)
        recorded, dropped, waiting = self.queue.counts()
        if uses == self.uses and not self.taking:
            assert recorded == taken + dropped + waiting
        assert 0 <= waiting <= 8, "one may be above the limit while a step is interrupted"
        assert 0 <= dropped <= recorded <= self.put
        assert 0 <= self.queue.weight_bytes

    def check_at_the_end(self) -> None:
        """Compare the counts with the taken and dropped items: each item occurs once."""
        recorded, dropped, waiting = self.queue.counts()
        assert (self.put, len(self.evicted)) == (recorded, dropped)
        left = self.queue.take(100)
        assert (waiting, 0) == (len(left), self.queue.weight_bytes)
        assert list(range(1, self.put + 1)) == sorted(self.evicted + self.taken + left)


def test_signal_handlers_may_use_the_queue(make_queue: MakeQueue) -> None:
    """If a signal handler puts, takes and counts at any moment, each item is counted once."""
    observer = _Observer(make_queue)
    handled = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        observer.use(handled)

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        number = 0
        while handled < 1000:
            number += 1
            observer.use(number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    observer.check_at_the_end()


def _interrupted(source: str, interruption: Callable[[], object], action: Callable[[], object]) -> int:
    """Run an action, and an interruption after each call that a source file makes into C, as signal handlers run.

    Returns:
        The number of interruptions.
    """
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event == "c_return" and frame.f_code.co_filename == source:
            count += 1
            interruption()

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def _use_sometimes(observer: _Observer, chance: random.Random) -> None:
    """Use the queue in some interruptions only: an interruption drops the item that the interrupted step would drop."""
    while chance.random() < 0.5:
        observer.use(chance.randrange(100))


def test_python_twin_may_be_interrupted_after_each_call(both_twins: dict[str, ModuleType]) -> None:
    """If a handler runs anywhere within a step of the Python twin, the counts are right and each item occurs once."""
    module = both_twins["py"].bounded_queue
    source = sys.modules[module.BoundedQueue.__module__].__file__
    assert source
    observer = _Observer(module.BoundedQueue)
    interruption = partial(_use_sometimes, observer, random.Random(0))
    interrupted = sum(_interrupted(source, interruption, partial(observer.use, number)) for number in range(2000))
    observer.check_at_the_end()
    assert interrupted > 2000


def test_interrupted_step_holds_no_lock_in_callbacks(both_twins: dict[str, ModuleType]) -> None:
    """A put() that interrupts a step of the Python twin leaves the callbacks to that step, which runs them at its end.

    A callback may wait for a lock whose owner waits for the queue.
    """
    module = both_twins["py"].bounded_queue
    source = sys.modules[module.BoundedQueue.__module__].__file__
    assert source
    blocked: list[object] = []

    def look(*callback: object) -> None:
        thread = threading.Thread(target=queue.counts, daemon=True)
        thread.start()
        thread.join(DEADLINE)
        if thread.is_alive():
            blocked.append(callback)

    queue = module.BoundedQueue(2, 1 << 40, wake=look, evicted=look)
    for action in (lambda: queue.put("outer"), lambda: queue.take(1), queue.counts):
        interruptions = iter(range(3))
        assert _interrupted(source, lambda: [queue.put("inner") for _ in interruptions], action)  # noqa: B023
        assert [] == blocked


def test_counts_add_up_at_every_moment(make_queue: MakeQueue, run_threads: Any, switch_often: None) -> None:
    """While four threads put and one takes, a reader finds each item either taken, dropped or waiting."""
    queue = make_queue(500)
    moving = threading.Lock()
    taken = 0
    running = 4

    def produce() -> None:
        nonlocal running
        for number in range(10_000):
            queue.put(number, "payload")
        with moving:
            running -= 1

    def consume() -> None:
        nonlocal taken
        while running:
            with moving:
                taken += len(queue.take(100))

    def read() -> None:
        while running:
            with moving:
                recorded, dropped, waiting = queue.counts()
                assert recorded == taken + dropped + waiting
                assert waiting <= 500

    run_threads(produce, produce, produce, produce, consume, read)
    recorded, dropped, waiting = queue.counts()
    assert 40_000 == recorded == taken + dropped + waiting


def test_takes_of_several_threads_get_each_item_once(
    make_queue: MakeQueue, run_threads: Any, switch_often: None
) -> None:
    """Threads that take at the same time share the items."""
    queue = make_queue()
    for item in range(20_000):
        queue.put(item)
    taken: list[int] = []

    def take() -> None:
        while items := queue.take(7):
            taken.extend(items)

    run_threads(take, take, take)
    assert list(range(20_000)) == sorted(taken)


def test_wake_is_called_once_by_several_threads(make_queue: MakeQueue, run_threads: Any, switch_often: None) -> None:
    """Threads that pass half at the same time cause one call of wake(), neither none nor two."""
    woken: list[None] = []
    queue = make_queue(8, wake=lambda: woken.append(None))
    for filling in range(1, 51):
        run_threads(*[lambda: queue.put(None)] * 4)
        assert filling == len(woken)
        queue.take(8)


def test_queue_releases_its_items(make_queue: MakeQueue) -> None:
    """Items are released with their queue, even in a reference cycle with it."""

    class Item:
        queue: Any = None

    item = Item()
    alive = weakref.ref(item)
    queue = make_queue(evicted=item)
    queue.put(item)
    item.queue = queue
    del item
    assert alive()
    del queue
    gc.collect()
    assert alive() is None


def test_taken_and_dropped_items_are_released(make_queue: MakeQueue) -> None:
    """The queue keeps no reference to removed items."""

    class Item:
        """Something large."""

    queue = make_queue(1)
    items = [Item(), Item(), Item()]
    alive = [weakref.ref(item) for item in items]
    while items:
        queue.put(items.pop(0))
    assert [False, False, True] == [reference() is not None for reference in alive]
    queue.take(1)
    assert alive[2]() is None


def test_empty_queue_releases_its_memory(make_queue: MakeQueue) -> None:
    """An empty queue has released the memory that it used when it was full."""
    queue = make_queue()
    tracemalloc.start()
    try:
        for _ in range(100_000):
            queue.put(None)
        full, _ = tracemalloc.get_traced_memory()
        queue.take(100_000)
        empty, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert full > 800_000
    assert empty < 400_000


leaves = st.one_of(st.none(), st.integers(-10, 5000), st.text(max_size=50), st.binary(max_size=200), st.floats())
payloads = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=9), st.integers()), inner, max_size=5),
    ),
    max_leaves=20,
)
operations = st.lists(st.one_of(st.tuples(st.just("put"), payloads), st.tuples(st.just("take"), st.integers(-1, 9))))


@given(max_items=st.integers(1, 12), max_bytes=st.integers(1, 6000), operations=operations)
def test_twins_do_the_same(
    both_twins: dict[str, ModuleType], max_items: int, max_bytes: int, operations: list[tuple[str, Any]]
) -> None:
    """Random operations give equal items, sizes, counts and callbacks."""
    logs: list[list[Any]] = []
    for package in both_twins.values():
        log: list[Any] = []
        queue = package.bounded_queue.BoundedQueue(
            max_items, max_bytes, wake=lambda log=log: log.append("wake"), evicted=log.append
        )
        for number, (name, argument) in enumerate(operations):
            log.append(queue.put(number, argument) if name == "put" else queue.take(argument))
            log.append((*queue.counts(), queue.weight_bytes, len(queue)))
        logs.append(log)
    assert logs[0] == logs[1]
