"""Operations of the queue, the activities, the ranges and the stages in C, used well and used wrongly."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from tests.nightly.leaks.cases import BIG, CONTENT, REAL, TEXT, Broken, BrokenClock, covers, extension, fail, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@covers(
    "BoundedQueue.__new__ BoundedQueue.put BoundedQueue.take BoundedQueue.counts BoundedQueue.weight_bytes "
    "BoundedQueue.__len__ BoundedQueue.__class_getitem__"
)
def queues(_folder: Path) -> Iterator[Callable[[], object]]:
    """Items of every kind, taken, evicted, and destructed with the queue, which is part of a cycle."""
    make: Any = extension("_bounded_queue_c").BoundedQueue
    payload = {TEXT: [CONTENT, "\u20ac", (REAL, {BIG: None})], BIG: b""}

    def operation() -> None:
        queue = make(20, 100_000, wake=lambda: None, evicted=lambda _item: None)
        for _ in range(50):
            queue.put(payload, payload)
        for each in (BIG, -1, 1 << 90, None, TEXT, CONTENT):
            queue.put(item=TEXT, payload=each)
        queue.put([queue])
        assert len(queue.take(3)) == 3
        assert 0 < len(queue) < queue.weight_bytes
        assert 57 == queue.counts().recorded
        make[int]

    yield operation


@covers("BoundedQueue.__new__ BoundedQueue.put BoundedQueue.take")
def queues_that_are_misused(_folder: Path) -> Iterator[Callable[[], object]]:
    """Wrong arguments, and callbacks that raise."""
    make: Any = extension("_bounded_queue_c").BoundedQueue
    queue = make(2, 1000)
    noisy = make(2, 1000, wake=fail, evicted=fail)

    def operation() -> None:
        for arguments in ((), (1,), (TEXT, 1), (1, TEXT), (0, 1), (1, -1)):
            refused((TypeError, ValueError), make, *arguments)
        refused(TypeError, queue.put)
        refused(TypeError, queue.put, 1, 2, 3)
        refused(TypeError, queue.put, TEXT, item=TEXT)
        refused(TypeError, queue.put, wrong=TEXT)
        refused(TypeError, queue.take, TEXT)
        for _ in range(4):
            noisy.put(TEXT)
        noisy.take(5)

    yield operation


@covers(
    "Activities.__new__ Activities.activity Activities.begin Activities.end_startup "
    "Activities.enter_for_owner Activities.position Activities.read Activities.stop Activity.__enter__ "
    "Activity.__exit__ Activity.__call__ Activity.__repr__ Activity.name"
)
def activities(_folder: Path) -> Iterator[Callable[[], object]]:
    """Activities of all kinds, of one object that is made and destructed."""
    make: Any = extension("_activities_c").Activities

    def operation() -> None:
        found = make(lambda name: (name, True), lambda function, _name: function)
        assert found.position() == (0, "", 0)
        found.begin(0, TEXT, "x")
        for name in (TEXT, "x", "y"):
            with (entered := found.activity(name)):
                pass
            assert entered.name == name
            assert entered(fail) is fail
            repr(entered)
        left = found.activity("z")
        left.__enter__()
        del left
        taken = found.enter_for_owner("x", found.position()[2])
        assert taken is not None
        assert found.enter_for_owner("x", 1) is None
        found.end_startup("y", True)
        assert found.read() is not None
        found.stop()
        assert found.read() is None

    yield operation


@covers(
    "Activities.__new__ Activities.activity Activities.begin Activities.end_startup "
    "Activities.enter_for_owner Activities.read Activity.__enter__ Activity.__exit__ Activity.__call__"
)
def activities_that_fail(_folder: Path) -> Iterator[Callable[[], object]]:
    """Clocks and hooks that raise or return something else, wrong arguments, and too many names."""
    make: Any = extension("_activities_c").Activities
    clock = BrokenClock()
    found = make(lambda name: (name, False), fail, clock.monotonic_ns)
    found.begin(0, TEXT, "x")
    entered = found.activity("x")
    crowded = make(lambda name: (name, False), fail)
    for number in range(128):
        crowded.activity(f"name {number}")

    def operation() -> None:
        refused(TypeError, make)
        for hook in (fail, lambda _name: (BIG, 1), lambda _name: ()):
            refused((Broken, TypeError), make(hook, fail).activity, TEXT)
        refused(RuntimeError, crowded.activity, TEXT)
        refused(TypeError, found.begin, TEXT)
        refused(TypeError, found.end_startup)
        refused(TypeError, found.enter_for_owner, TEXT, TEXT)
        refused(TypeError, entered)
        refused(TypeError, entered, fail, name=TEXT)
        refused(Broken, entered, fail)
        for now, error in ((None, Broken), (TEXT, TypeError), (1 << 80, OverflowError)):
            clock.now = now
            for call in (
                found.read,
                entered.__enter__,
                entered.__exit__,
                lambda: found.begin(0, TEXT, "x"),
                lambda: found.end_startup(TEXT),
                lambda: found.enter_for_owner(TEXT),
            ):
                refused(error, call)
        clock.now = 0

    yield operation


@covers("main_thread_pulse")
def pulses(_folder: Path) -> Iterator[Callable[[], object]]:
    """The number that the main thread changes."""
    yield extension("_activities_c").main_thread_pulse


@covers(
    "begin end current record_past now set_clock set_listeners forget_track Range.__repr__ Range.start_ns "
    "Range.end_ns Range.step"
)
def ranges(_folder: Path) -> Iterator[Callable[[], object]]:
    """Nested ranges, ranges of the past, and a range that another context ends, with listeners, one of which raises."""
    module: Any = extension("profiler.ranges._ranges_c")
    outer, inner = object(), object()
    received: list[Any] = []

    def operation() -> None:
        module.set_listeners((received.append, fail), (received.append, fail))
        first = module.begin(outer, TEXT, CONTENT)
        second = module.begin(inner, BIG, None)
        assert module.current() is second
        assert second.parent is first
        module.record_past(TEXT, None, 0, 1, None)
        module.record_past(TEXT, None, 0, 1, first.track)
        module.end(outer, first)
        module.end(inner, second, TEXT)
        refused(AssertionError, module.end, outer, first)
        refused((TypeError, OverflowError), module.record_past, TEXT, None, TEXT, 1, None)
        refused((TypeError, OverflowError), module.record_past, TEXT, None, 1, 1 << 80, None)
        assert (repr(first), first.start_ns, second.end_ns, first.step) is not None
        module.forget_track()
        received.clear()
        module.set_listeners((), ())
        refused(TypeError, module.set_listeners, [], [])

    yield operation


@covers("begin end now set_clock set_listeners")
def ranges_that_fail(_folder: Path) -> Iterator[Callable[[], object]]:
    """Clocks that fail, names that cannot be read, and a listener that is interrupted."""
    module: Any = extension("profiler.ranges._ranges_c")
    clock, label = BrokenClock(), object()

    class Nameless:
        __str__ = fail

    def interrupt(_range: Any) -> None:
        raise KeyboardInterrupt

    nameless = Nameless()

    def operation() -> None:
        module.set_clock(clock, BIG)
        refused(TypeError, module.set_clock, clock)
        for now, error in ((None, Broken), (TEXT, TypeError), (1 << 80, OverflowError)):
            clock.now = 0
            begun = module.begin(label, TEXT, None)
            clock.now = now
            refused(error, module.begin, label, TEXT, None)
            refused(error, module.end, label, begun)
            refused(error, module.now)
            clock.now = 0
            module.end(label, begun)
        refused(Broken, module.begin, label, nameless, None)
        refused(Broken, module.record_past, nameless, None, 0, 1, None)
        module.set_listeners((interrupt,), (interrupt,))
        refused(KeyboardInterrupt, module.begin, label, TEXT, None)
        refused(KeyboardInterrupt, module.record_past, TEXT, None, 0, 1, None)
        module.set_listeners((), (interrupt,))
        begun = module.begin(label, TEXT, None)
        refused(KeyboardInterrupt, module.end, label, begun)
        module.set_listeners((), ())
        module.set_clock(None, 0)

    yield operation


class Loader:
    """An iterator that can have weak references."""


@covers(
    "Cycle.optimizer_began Cycle.optimizer_ended Cycle.optimizer_began_in_backward Cycle.batch_began "
    "Cycle.batch_ended Cycle.backward_began Cycle.backward_ended Cycle.gradients_complete Cycle.wait_began "
    "Cycle.wait_ended Cycle.waited Cycle.in_flight Cycle.asks Cycle.trains "
    "Cycle.forward_since_ns Cycle.remembered Cycle.__init__"
)
def cycles(_folder: Path) -> Iterator[Callable[[], object]]:
    """Steps with many iterators, of a cycle that is destructed with them."""
    make: Any = extension("torch.stages._cycle_c").Cycle

    def operation() -> None:
        cycle = make(lambda _stages: None)
        for step in range(2):
            for number, iterator in enumerate((*(Loader() for _ in range(20)), TEXT, None, *[kept := Loader()] * 2)):
                cycle.batch_began(number)
                cycle.batch_ended(number, iterator, 1 if number % 3 else None, number % 5 > 0)
            del kept
            cycle.backward_began(100)
            cycle.gradients_complete()
            cycle.wait_ended(cycle.wait_began(), step)
            assert cycle.in_flight() == ("backward", True, 100)
            cycle.optimizer_began_in_backward()
            cycle.backward_ended(200)
            cycle.optimizer_began(300)
            cycle.waited(step)
            cycle.optimizer_ended(400)
        cycle.batch_ended(500, Loader(), 1, True)
        assert (cycle.asks, cycle.trains, cycle.forward_since_ns, cycle.remembered) == (True, True, 500, 1)
        cycle.__init__(fail)

    yield operation


@covers(
    "Cycle.optimizer_began Cycle.optimizer_ended Cycle.batch_began Cycle.batch_ended Cycle.backward_began "
    "Cycle.backward_ended Cycle.wait_ended Cycle.waited Cycle.__init__"
)
def cycles_that_fail(_folder: Path) -> Iterator[Callable[[], object]]:
    """Times that are not numbers, an end that raises, and iterators whose truth cannot be read."""
    make: Any = extension("torch.stages._cycle_c").Cycle
    cycle = make(fail)

    class Undecided:
        __bool__ = fail

    undecided = Undecided()

    def operation() -> None:
        refused(TypeError, make)
        for call in (
            cycle.optimizer_began,
            cycle.optimizer_ended,
            cycle.batch_began,
            cycle.backward_began,
            cycle.backward_ended,
            cycle.waited,
        ):
            refused(TypeError, call, TEXT)
            refused(OverflowError, call, 1 << 80)
        refused(TypeError, cycle.wait_ended, 1)
        refused(TypeError, cycle.wait_ended, TEXT, 1)
        refused(OverflowError, cycle.wait_ended, 1, 1 << 80)
        refused(TypeError, cycle.batch_ended, 1)
        refused(TypeError, cycle.batch_ended, TEXT, None, 1, True)
        refused(TypeError, cycle.batch_ended, 1, None, TEXT, True)
        refused(Broken, cycle.batch_ended, 1, None, 1, undecided)
        cycle.backward_ended(1)
        cycle.optimizer_began(2)
        refused(Broken, cycle.optimizer_ended, 3)
        cycle.backward_ended(4)
        cycle.optimizer_began(5)
        refused(Broken, cycle.batch_began, 6)

    yield operation
    gc.collect()
