"""Methods that run inside a context manager."""

from __future__ import annotations

import logging
import pickle
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from monitel.integrations import wrapping
from monitel.integrations.wrapping import wrap_class, wrap_object

if TYPE_CHECKING:
    from collections.abc import Iterator

calls: list[Any] = []


class Loop:
    """An object with a method."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, value: int) -> int:
        """Note the call."""
        calls.append((self.name, value))
        return value + 1


@contextmanager
def around(loop: Loop, value: int) -> Iterator[None]:
    """Note that the block begins, and that it ends."""
    calls.append(f"begin {loop.name} {value}")
    try:
        yield
    finally:
        calls.append("end")


def fail(*_arguments: object) -> AbstractContextManager[None]:
    """Raise an exception."""
    raise RuntimeError("broken")


@pytest.fixture(autouse=True)
def _no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr(wrapping, "_warned", set())
    monkeypatch.setattr(Loop, "run", Loop.run)  # restored after the test


def test_method_of_a_class_runs_inside() -> None:
    """Once, even if it is wrapped again; a class without the method is left alone."""
    for _ in range(2):
        wrap_class(Loop, "run", around)
    wrap_class(Loop, "missing", around)
    assert 2 == Loop("a").run(1)
    assert ["begin a 1", ("a", 1), "end"] == calls
    assert not hasattr(Loop, "missing")


@pytest.mark.parametrize("copy", [deepcopy, lambda loop: pickle.loads(pickle.dumps(loop))])
def test_method_of_one_object_runs_inside(copy: Any) -> None:
    """Other objects are left alone, and a copy runs its own method."""
    loop = Loop("a")
    for _ in range(2):
        wrap_object(loop, "run", around)
    twin = copy(loop)
    twin.name = "twin"
    wrap_object(twin, "run", around)
    assert [2, 3, 4] == [loop.run(1), twin.run(2), Loop("b").run(value=3)]
    assert ["begin a 1", ("a", 1), "end", "begin twin 2", ("twin", 2), "end", ("b", 3)] == calls


def test_replaced_method_of_an_object_runs_inside() -> None:
    """The program has replaced it before."""
    loop: Any = Loop("a")
    loop.run = lambda value: 10 * value
    wrap_object(loop, "run", around)
    assert 30 == loop.run(3)
    assert ["begin a 3", "end"] == calls


def test_failing_telemetry_does_not_stop_the_method(caplog: pytest.LogCaptureFixture) -> None:
    """Its exception is logged once; that of the method is raised unchanged."""
    loop = Loop("a")
    wrap_object(loop, "run", fail)
    with caplog.at_level(logging.WARNING, "monitel"):
        assert [2, 3] == [loop.run(1), loop.run(2)]
    assert ["fail() failed (further failures are not logged)"] == [each.getMessage() for each in caplog.records]
    wrap_class(Loop, "run", around)
    with pytest.raises(TypeError, match="str"):
        Loop("b").run("text")  # type: ignore[arg-type]
    assert "end" == calls[-1]
