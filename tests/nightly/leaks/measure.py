"""Memory, objects and references of this process, before and after an operation is repeated."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ROUNDS, REPETITIONS = 3, 1000
_WARM_UP = 100  # caches, free lists and tables reach their size


class Growth(NamedTuple):
    """The growth in one round, which is flat if it does not come with each repetition."""

    heap_bytes: int  # memory of Python's allocators, including the raw one, which C code uses
    objects: int  # number of objects that the garbage collector tracks
    references: int  # references to these objects, and to the values that the operation passes to C code


#: A leaked object has at least 16 bytes, so a leak in each tenth repetition is found.
MOST = Growth(heap_bytes=REPETITIONS * 16 // 10, objects=REPETITIONS // 10, references=REPETITIONS // 10)


def steady_growth(operation: Callable[[], object], values: Sequence[Any]) -> Growth:
    """Repeat an operation, and return the growth that there is in each round.

    Args:
        operation: Called thousands of times.
        values: Objects whose references are counted although the garbage collector does not track them.
    """
    for _ in range(_WARM_UP):
        operation()
    tracemalloc.start(1)
    try:
        rounds = [_growth(operation, values) for _ in range(ROUNDS)]
    finally:
        tracemalloc.stop()
    return Growth(*(min(each) for each in zip(*rounds, strict=True)))


def leaks(growth: Growth) -> dict[str, int]:
    return {name: number for name, number in growth._asdict().items() if number > getattr(MOST, name)}


def _growth(operation: Callable[[], object], values: Sequence[Any]) -> Growth:
    before = _reading(values)
    for _ in range(REPETITIONS):
        operation()
    after = _reading(values)
    return Growth(*(late - early for early, late in zip(before, after, strict=True)))


def _reading(values: Sequence[Any]) -> tuple[int, int, int]:
    gc.collect()
    heap_bytes, _ = tracemalloc.get_traced_memory()
    tracked = gc.get_objects()
    objects = len(tracked)
    references = sum(map(sys.getrefcount, tracked)) + sum(map(sys.getrefcount, values))
    del tracked
    return heap_bytes, objects, references
