"""Operations of ranges in C, used well and used wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.nightly.leaks.cases import BIG, CONTENT, TEXT, Broken, BrokenClock, covers, extension, fail, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
