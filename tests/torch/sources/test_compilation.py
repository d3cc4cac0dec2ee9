"""Compilations as ranges and events."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.profiler import profile, ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch import _compat  # noqa: E402
from monitel.torch.sources import compilation, compilation_range  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # raised within torch
]
_DEADLINE = 30


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def source() -> Iterator[compilation.Compilation]:
    """Install the source."""
    source = compilation.Compilation()
    source.install()
    yield source
    source.remove()


def plain(x: Any) -> Any:
    """Return a result of one operation."""
    return x * 2


def counted(name: str) -> float:
    """Return the value of a counter."""
    return sum(each.total for each in monitel.counters() if each.counter.name == name)


def test_compilation_is_a_range(source: compilation.Compilation) -> None:
    """The range is in the compiling thread, within the current range, and in profiles."""
    compiled = torch.compile(plain, backend="eager", fullgraph=True, dynamic=False)
    with monitel.testing.capture_events() as events, profile() as prof:
        with record_function("step"):
            compiled(torch.ones(2))
            compiled(torch.ones(2))
        compiled(torch.ones(3))
        source.poll()
    found = [event for event in prof.events() if event.name == "torch.compile"]
    assert ["step", None] == [None if each.cpu_parent is None else each.cpu_parent.name for each in found]
    assert all(0 < each.time_range.elapsed_us() < 100e6 for each in found)
    started = [event for event in events if event.name == "torch.compile.started"]
    ended = [event for event in events if event.name in {"torch.compile", "torch.recompile"}]
    assert [event.data["compile.id"] for event in ended] == [event.data["compile.id"] for event in started]
    assert ["dynamo", "dynamo"] == [event.data["compile.trigger"] for event in started]
    assert all(begin.timestamp <= end.timestamp for begin, end in zip(started, ended, strict=True))


def test_hanging_compilation_is_reported(source: compilation.Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start event, with rank and step, is logged while the compilation runs. Its range has begun, but not ended."""
    monkeypatch.setenv("RANK", "2")
    monitel.set_step(7)
    hangs, resume = threading.Event(), threading.Event()
    began: list[ranges.Range] = []

    def backend(module: Any, _inputs: Any) -> Any:
        hangs.set()
        resume.wait(_DEADLINE)
        return module.forward

    def compute() -> None:
        torch.compile(plain, backend=backend)(torch.ones(2))

    thread = threading.Thread(target=compute)
    with monitel.testing.capture_events() as events, ranges.listen(began=began.append):
        thread.start()
        assert hangs.wait(_DEADLINE)
        monitel.set_step(8)
        source.poll()
        (event,) = events
        (range_,) = began
        assert ("torch.compile", None) == (range_.name, range_.end_ns)
        resume.set()
        thread.join(_DEADLINE)
        source.poll()
    assert "torch.compile.started" == event.name
    assert (2, 7) == (event.data["training.rank"], event.data["training.step"])
    assert event.data["compile.id"] == range_.args["compile.id"]
    assert range_.end_ns is not None
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in events]


def test_failed_compilation_ends_its_range(source: compilation.Compilation) -> None:
    """The compiler's exception is raised as without monitel."""
    began: list[ranges.Range] = []

    def broken(_module: Any, _inputs: Any) -> Any:
        raise ValueError("no such backend")

    with ranges.listen(began=began.append), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(plain, backend=broken)(torch.ones(2))
    (range_,) = began
    assert range_.end_ns is not None
    source.poll()


def test_callbacks_are_restored_after_a_compiler_reset(source: compilation.Compilation) -> None:
    """A reset clears the compiler's callbacks; the next poll registers them again, once."""
    torch.compiler.reset()
    for _ in range(2):
        source.poll()
    with monitel.testing.capture_events() as events:
        torch.compile(plain, backend="eager")(torch.ones(2))
        source.poll()
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in events]


def test_install_and_remove_within_a_compilation() -> None:
    """Neither affects the compilation, and no range stays open."""
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
            source._register()
        source.remove()
    assert [("torch.compile", True)] == [(each.name, each.end_ns is not None) for each in began]
    assert ranges.current_range() is None
    assert source._on_end not in torch._dynamo.callback.callback_handler.end_callbacks


def test_missing_callbacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is not installed, and the error names the missing attribute."""
    monkeypatch.delattr("torch._dynamo.callback.callback_handler.start_callbacks")
    with pytest.raises(_compat.Missing, match="start_callbacks"):
        compilation.Compilation().install()


def test_each_compilation_is_reported_once(source: compilation.Compilation) -> None:
    """A recompilation, after a guard has failed, is reported with the reason, and counted."""
    compiled = torch.compile(plain, backend="eager", dynamic=False)
    before, seconds = counted("training.recompilations"), counted("training.recompilation.time")
    with monitel.testing.capture_events() as events:
        for size in (2, 2, 3):
            compiled(torch.ones(size))
            source.poll()
            source.poll()
    assert 1 == counted("training.recompilations") - before
    first, again = (event for event in events if event.name != "torch.compile.started")
    assert ("torch.compile", monitel.Severity.INFO) == (first.name, first.severity)
    assert ("torch.recompile", monitel.Severity.WARN) == (again.name, again.severity)
    assert {"plain"} == {event.data["compile.function"] for event in (first, again)}
    assert "expected 2, actual 3" in str(again.data["compile.reason"])
    assert "compile.reason" not in first.data
    assert counted("training.recompilation.time") - seconds == pytest.approx(again.data["compile.duration"])
    assert float(again.data["compile.duration"]) > 0
    assert 0 < float(first.data["compile.duration"]) < 100
    assert abs((again.timestamp - first.timestamp).total_seconds()) < 100


def test_events_have_the_step_of_the_compilation(source: compilation.Compilation) -> None:
    """The steps that follow before the next poll make no difference, to none of the three events."""
    compiled = torch.compile(plain, backend="eager", dynamic=False)
    with monitel.testing.capture_events() as events:
        for step, size in ((100, 2), (150, 3), (200, 3)):
            monitel.set_step(step)
            compiled(torch.ones(size))
        monitel.set_step(202)
        source.poll()
    found = [(event.name, event.step, event.data["training.step"]) for event in events]
    assert [
        *(("torch.compile.started", step, step) for step in (100, 150)),
        *(("torch.compile", 100, 100), ("torch.recompile", 150, 150)),
    ] == found


def test_compilation_within_another_has_the_step_of_the_outer_one(source: compilation.Compilation) -> None:
    """The compiler reports the start of the outer one alone. Backward is compiled later, with the same id."""

    def backend(module: Any, _inputs: Any) -> Any:
        monitel.set_step(6)  # in the middle of the outer one
        torch.compile(lambda x: x - 1, backend="eager")(torch.ones(4))
        return module.forward

    monitel.set_step(5)
    torch.compile(plain, backend=backend)(torch.ones(2))
    monitel.set_step(9)
    with monitel.testing.capture_events() as events:
        source.poll()
    ended = [event for event in events if event.name == "torch.compile"]
    assert [5] * len(ended) == [event.step for event in ended]
    assert 1 <= len(ended)


def test_compilation_before_the_first_step_has_no_step(source: compilation.Compilation) -> None:
    """A step that began until the poll is not its step. Without an observed start, the current step is the best."""
    torch.compile(plain, backend="eager")(torch.ones(2))
    monitel.set_step(3)
    with monitel.testing.capture_events() as events:
        source.poll()
        source._range._steps.clear()
        torch.compile(lambda x: x / 3, backend="eager")(torch.ones(2))
        source._range._steps.clear()
        source.poll()
    steps = [(event.name, event.step, event.data.get("training.step")) for event in events]
    assert [
        *(("torch.compile.started", None, None), ("torch.compile", None, None)),
        *(("torch.compile.started", 3, 3), ("torch.compile", 3, 3)),
    ] == steps


def test_failed_compilation_is_an_error(source: compilation.Compilation) -> None:
    """The event has torch's message."""

    def broken(_module: Any, _inputs: Any) -> Any:
        raise ValueError("no such backend")

    with monitel.testing.capture_events() as events, pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))
    with monitel.testing.capture_events() as events:
        source.poll()
    assert [("torch.compile.started", monitel.Severity.INFO), ("torch.compile", monitel.Severity.ERROR)] == [
        (event.name, event.severity) for event in events
    ]
    assert "no such backend" in str(events[1].data["compile.failure.reason"])


def test_compilations_that_torch_keeps_are_reported_once(source: compilation.Compilation) -> None:
    """Torch keeps the last 64 compilations."""
    listed = [object() for _ in range(64)]
    source._list = lambda: listed
    with monitel.testing.capture_events() as events:
        source.poll()
        source.poll()
        listed[:] = [*listed[2:], object(), object()]
        source.poll()
        listed[:] = [object() for _ in range(64)]
        source.poll()
    assert 64 + 2 + 64 == len(events)
