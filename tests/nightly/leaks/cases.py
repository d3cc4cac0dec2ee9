"""The table of cases: operations that are repeated, each with the functions of the C extensions that it calls."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    _Make = Callable[[Path], Iterator[Callable[[], object]]]


class Case(NamedTuple):
    """An operation.

    Attributes:
        covers: Names of the functions and methods in C that it calls.
        make: Called once, with an empty folder; yields the operation, and then cleans up.
    """

    covers: frozenset[str]
    make: Callable[[Path], Iterator[Callable[[], object]]]


CASES: dict[str, Case] = {}
#: Values that are passed to C code and that the garbage collector does not track.
TEXT, BIG, REAL, CONTENT = "a text of a case", 10**12 + 7, 1234.5, b"a content of a case"
VALUES = [None, True, False, 0, 1, "", b"", (), TEXT, BIG, REAL, CONTENT, "no", "x"]


def covers(names: str) -> Callable[[_Make], _Make]:
    """Add a case that calls these functions, whose names are separated by spaces."""

    def add(make: _Make) -> _Make:
        CASES[make.__name__] = Case(frozenset(names.split()), make)
        return make

    return add


def extension(name: str) -> ModuleType:
    """Return a C module, without its package: that of the stages imports torch."""
    module = sys.modules.get(f"monitel.{name}")
    if module is None:
        *folders, last = name.split(".")
        spec = PathFinder.find_spec(last, [str(Path(monitel.__file__).parent.joinpath(*folders))])
        assert spec is not None, f"the extension {name} is not built"
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def refused(
    expected: type[BaseException] | tuple[type[BaseException], ...],
    function: Callable[..., object],
    *arguments: Any,
    **named: Any,
) -> None:
    """Call a function that raises."""
    try:
        function(*arguments, **named)
    except expected:
        return
    raise AssertionError(f"{function} has accepted {arguments} {named}")


class Broken(Exception):  # noqa: N818  not an error
    """Raised by callbacks of a case."""


def fail(*_arguments: Any, **_named: Any) -> Any:
    """Raise."""
    raise Broken


class BrokenClock:
    """A clock that returns what a case sets, and raises if that is None."""

    def __init__(self) -> None:
        self.now: Any = 0

    def monotonic_ns(self) -> Any:
        """Return the time, or raise."""
        return fail() if self.now is None else self.now

    time_ns = monotonic_ns
