"""Threads that race for listeners, clocks and one range: each listener gets each range once.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from monitel.testing import ManualClock

if TYPE_CHECKING:
    from monitel.profiler import record_function

THREADS = 3
RANGES = 400  # of each thread


def test_every_range_once_while_listeners_and_clocks_change(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """A listener that stays gets each range of each thread once, in order, within its parent."""
    began: list[Any] = []
    ended: list[Any] = []
    running = [object()] * THREADS  # list.pop() is atomic on every build

    def work(thread: int) -> None:
        for number in range(RANGES):
            with record(f"{thread} outer {number}"), record(f"{thread} inner {number}"):
                pass
        running.pop()

    def listen() -> None:
        while running:
            with ranges.listen(began=lambda _: None, ended=lambda _: None):
                pass

    with ranges.listen(began=began.append, ended=ended.append):
        run_threads(*(partial(work, thread) for thread in range(THREADS)), listen)
    expected = Counter(
        f"{thread} {kind} {number}"
        for thread in range(THREADS)
        for number in range(RANGES)
        for kind in ("outer", "inner")
    )
    assert expected == Counter(each.name for each in began) == Counter(each.name for each in ended)
    for thread in range(THREADS):
        mine = [each for each in began if each.name.startswith(f"{thread} ")]
        assert all(a.monotonic_start_ns <= b.monotonic_start_ns for a, b in pairwise(mine))
        assert all((each.parent is None) == ("outer" in each.name) for each in mine)
        assert all(each.parent.name == each.name.replace("inner", "outer") for each in mine if each.parent is not None)


def test_clock_and_listeners_are_replaced_while_they_are_in_use(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """The recorder keeps a clock and listeners alive while it calls them."""
    running = [object()] * 2
    recorder = ranges._ranges
    received: list[Any] = []

    def work() -> None:
        for _ in range(RANGES):
            with record("range"):
                pass
        running.pop()

    def replace() -> None:
        while running:
            recorder.set_clock(ManualClock(), 0)
            recorder.set_listeners((lambda _: None, lambda _: None), (received.append,))

    try:
        run_threads(work, work, replace)
    finally:
        recorder.set_listeners((), ())
        recorder.set_clock(None, 0)
    assert {"range"} >= {each.name for each in received}


def test_of_several_threads_one_ends_a_range(
    ranges: Any, record: type[record_function], run_threads: Any, twin: str
) -> None:
    """In C a range ends once, and the other threads get an error; in Python several may end it."""
    if twin == "py":
        return
    ended: list[Any] = []
    errors: list[str] = []

    def end(blocks: list[Any]) -> None:
        for block in blocks:
            try:
                block.__exit__(None, None, None)
            except AssertionError as error:
                errors.append(str(error))

    with ranges.listen(ended=ended.append):
        blocks = [record(f"range {number}") for number in range(RANGES)]
        for block in blocks:
            block.__enter__()
        run_threads(*(partial(end, blocks) for _ in range(THREADS)))
    assert Counter(f"range {number}" for number in range(RANGES)) == Counter(each.name for each in ended)
    assert ["Expected record to be set"] * (RANGES * (THREADS - 1)) == errors
