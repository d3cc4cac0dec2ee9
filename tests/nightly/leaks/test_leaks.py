"""Windows in C leak neither memory nor references, whether their functions succeed or fail."""

import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import pytest
from tests.nightly.leaks.windows import CASES, TEXT, VALUES

ROUNDS, REPETITIONS = 5, 1000
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


pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="CPython without the GIL frees references later"
)

_UNCOVERED_BY_NATURE = {"__doc__", "__module__"}


@pytest.fixture(autouse=True)
def _quiet(both_twins: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip without the extension; ignore exceptions of callbacks, and collect garbage only where it is measured."""
    monkeypatch.setattr("sys.unraisablehook", lambda _report: None)
    gc.disable()
    gc.unfreeze()  # references to all objects count
    yield
    gc.enable()


@pytest.mark.parametrize("name", CASES)
def test_operation_leaks_nothing(name: str) -> None:
    """Repeated a thousand times, five times: memory, objects and references do not grow with the repetitions."""
    made = CASES[name].make()
    assert {} == leaks(steady_growth(next(made), VALUES))
    assert next(made, None) is None


def test_each_function_of_the_extension_has_a_case() -> None:
    """A function or method that is new in C needs one."""
    covered = frozenset[str]().union(*(case.covers for case in CASES.values()))
    assert set() == {*_functions()} - covered


def _functions() -> Iterator[str]:
    for name, value in vars(import_module("monitel.stats._window_c")).items():
        if isinstance(value, BuiltinFunctionType):
            yield name
        elif isinstance(value, type):
            for member, found in vars(value).items():
                if member not in _UNCOVERED_BY_NATURE and type(found).__name__ != "member_descriptor":
                    yield f"{name}.{member}"


_increase = ctypes.pythonapi.Py_IncRef
_allocate = ctypes.pythonapi.PyMem_RawMalloc
_allocate.restype = ctypes.c_void_p


@pytest.mark.parametrize(
    ("leak", "found"),
    [
        (lambda: _increase(ctypes.py_object(TEXT)), {"references"}),
        (lambda: _increase(ctypes.py_object(object())), {"heap_bytes"}),
        (lambda: _increase(ctypes.py_object([])), {"heap_bytes", "objects", "references"}),
        (lambda: _allocate(ctypes.c_size_t(16)), {"heap_bytes"}),
    ],
    ids=["a reference", "an object", "a container", "memory"],
)
def test_leak_is_found(leak: Callable[[], object], found: set[str]) -> None:
    """Each kind of leak, of the smallest size."""
    assert found == set(leaks(steady_growth(leak, VALUES)))
