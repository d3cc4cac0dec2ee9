"""Windows in C leak neither memory nor references, whether their functions succeed or fail."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any

import pytest
from tests.nightly.leaks.measure import leaks, steady_growth
from tests.nightly.leaks.windows import CASES, TEXT, VALUES

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
    """Repeated a thousand times, three times: memory, objects and references do not grow with the repetitions."""
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
