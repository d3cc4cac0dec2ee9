"""What was compiled, and why again, as events; a compilation while it lasts, as a range and an event."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.profiler import profile, ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import _compat, compilation, compilation_range  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # of torch, in torch
]
_PATIENCE = 30


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def source() -> Iterator[compilation.Compilation]:
    """Listen to the compiler."""
    source = compilation.Compilation()
    source.install()
    yield source
    source.remove()


def plain(x: Any) -> Any:
    """Compute."""
    return x * 2


def test_a_compilation_is_a_range(source: compilation.Compilation) -> None:
    """In the thread that compiles, within what runs there; a profile shows it."""
    compiled = torch.compile(plain, backend="eager", fullgraph=True, dynamic=False)
    with monitel.testing.capture_events() as events, profile() as prof:
        with record_function("step"):
            compiled(torch.ones(2))
            compiled(torch.ones(2))
        compiled(torch.ones(3))
        source.tick()
    found = [event for event in prof.events() if event.name == "torch.compile"]
    assert ["step", None] == [None if each.cpu_parent is None else each.cpu_parent.name for each in found]
    assert all(0 < each.time_range.elapsed_us() < 100e6 for each in found)
    started = [event for event in events if event.name == "torch.compile.started"]
    ended = [event for event in events if event.name in {"torch.compile", "torch.recompile"}]
    assert [event.data["compile.id"] for event in ended] == [event.data["compile.id"] for event in started]
    assert ["dynamo", "dynamo"] == [event.data["compile.trigger"] for event in started]
    assert all(begin.timestamp <= end.timestamp for begin, end in zip(started, ended, strict=True))


def test_a_compilation_that_hangs_is_seen(source: compilation.Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event comes while it runs, with rank and step; its range has begun, and not ended."""
    monkeypatch.setenv("RANK", "2")
    monitel.set_step(7)
    hangs, goes_on = threading.Event(), threading.Event()
    began: list[ranges.Range] = []

    def backend(module: Any, _inputs: Any) -> Any:
        hangs.set()
        goes_on.wait(_PATIENCE)
        return module.forward

    def compute() -> None:
        torch.compile(plain, backend=backend)(torch.ones(2))

    thread = threading.Thread(target=compute)
    with monitel.testing.capture_events() as events, ranges.listen(began=began.append):
        thread.start()
        assert hangs.wait(_PATIENCE)
        monitel.set_step(8)
        source.tick()
        (event,) = events
        (range_,) = began
        assert ("torch.compile", None) == (range_.name, range_.end_ns)
        goes_on.set()
        thread.join(_PATIENCE)
        source.tick()
    assert "torch.compile.started" == event.name
    assert (2, 7) == (event.data["training.rank"], event.data["training.step"])
    assert event.data["compile.id"] == range_.args["compile.id"]
    assert range_.end_ns is not None
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in events]
    monitel._window.set_step(None)


def test_a_compilation_that_fails_ends_its_range(source: compilation.Compilation) -> None:
    """What is raised comes out as it did."""
    began: list[ranges.Range] = []

    def broken(_module: Any, _inputs: Any) -> Any:
        raise ValueError("no such backend")

    with ranges.listen(began=began.append), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(plain, backend=broken)(torch.ones(2))
    (range_,) = began
    assert range_.end_ns is not None
    source.tick()


def test_a_reset_of_the_compiler_is_survived(source: compilation.Compilation) -> None:
    """It clears its callbacks; the next tick puts them back, once."""
    torch.compiler.reset()
    for _ in range(2):
        source.tick()
    with monitel.testing.capture_events() as events:
        torch.compile(plain, backend="eager")(torch.ones(2))
        source.tick()
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in events]


def test_listening_that_begins_or_ends_within_a_compilation() -> None:
    """Neither disturbs it."""
    source = compilation_range.CompilationRange()
    began: list[ranges.Range] = []

    def install(module: Any, _inputs: Any) -> Any:
        source.install()
        return module.forward

    def remove(module: Any, _inputs: Any) -> Any:
        source.remove()
        source.remove()
        return module.forward

    with ranges.listen(began=began.append):
        for backend in (install, remove):
            torch.compile(plain, backend=backend)(torch.ones(2))
            torch._dynamo.reset()
            source._listen()
        source.remove()
    assert ["torch.compile"] == [each.name for each in began]


def test_callbacks_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source stays off, and says what is missing."""
    monkeypatch.delattr("torch._dynamo.callback.callback_handler.start_callbacks")
    with pytest.raises(_compat.Missing, match="start_callbacks"):
        compilation.Compilation().install()


def test_compilations_are_said(source: compilation.Compilation) -> None:
    """Each once: the first of a function, and again where a guard has failed, with the reason."""
    compiled = torch.compile(plain, backend="eager", dynamic=False)
    with monitel.testing.capture_events() as events:
        for size in (2, 2, 3):
            compiled(torch.ones(size))
            source.tick()
            source.tick()
    first, again = (event for event in events if event.name != "torch.compile.started")
    assert ("torch.compile", monitel.Severity.INFO) == (first.name, first.severity)
    assert ("torch.recompile", monitel.Severity.WARN) == (again.name, again.severity)
    assert {"plain"} == {event.data["compile.function"] for event in (first, again)}
    assert "expected 2, actual 3" in str(again.data["compile.reason"])
    assert "compile.reason" not in first.data
    assert 0 < float(first.data["compile.duration"]) < 100
    assert abs((again.timestamp - first.timestamp).total_seconds()) < 100


def test_a_compilation_that_fails_is_an_error(source: compilation.Compilation) -> None:
    """With what torch says."""

    def broken(_module: Any, _inputs: Any) -> Any:
        raise ValueError("no such backend")

    with monitel.testing.capture_events() as events, pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))
    with monitel.testing.capture_events() as events:
        source.tick()
    assert [("torch.compile.started", monitel.Severity.INFO), ("torch.compile", monitel.Severity.ERROR)] == [
        (event.name, event.severity) for event in events
    ]
    assert "no such backend" in str(events[1].data["compile.failure.reason"])


def test_more_compilations_than_torch_keeps(source: compilation.Compilation) -> None:
    """Those that it has are said, each once."""
    listed = [object() for _ in range(64)]
    source._list = lambda: listed
    with monitel.testing.capture_events() as events:
        source.tick()
        source.tick()
        listed[:] = [*listed[2:], object(), object()]
        source.tick()
        listed[:] = [object() for _ in range(64)]
        source.tick()
    assert 64 + 2 + 64 == len(events)
