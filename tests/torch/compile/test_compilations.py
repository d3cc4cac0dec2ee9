"""Compilations: a range around each, an event at its start and its end, and the activity ``compile``."""

import threading
from typing import Any

import pytest
import torch
from tests.torch.known_work import activity

import monitel
import monitel.torch
from monitel.profiler import profile, ranges, record_function

pytestmark = pytest.mark.usefixtures("fresh_compiler", "instrumented")
_DEADLINE = 60


def plain(x: Any) -> Any:
    return x * 2


def compilations(events: list[monitel.Event]) -> list[monitel.Event]:
    monitel.flush()
    return [event for event in events if event.name.startswith("torch.") and event.window is None]


def test_compilation_is_a_range(events: list[monitel.Event]) -> None:
    """In the compiling thread, within the current range, and in profiles."""
    compiled = torch.compile(plain, backend="eager", fullgraph=True, dynamic=False)
    with profile() as prof:
        with record_function("step"):
            compiled(torch.ones(2))
            compiled(torch.ones(2))
        compiled(torch.ones(3))
    found = [event for event in prof.events() if event.name == "torch.compile"]
    assert ["step", None] == [None if each.cpu_parent is None else each.cpu_parent.name for each in found]
    assert all(0 < each.time_range.elapsed_us() < 100e6 for each in found)
    started = [event for event in compilations(events) if event.name == "torch.compile.started"]
    assert ["dynamo", "dynamo"] == [event.data["compile.trigger"] for event in started]


def test_hanging_compilation_is_reported(monkeypatch: pytest.MonkeyPatch, events: list[monitel.Event]) -> None:
    """The start event, with rank and step, is logged while the compilation runs. Its range has not ended."""
    monkeypatch.setenv("RANK", "2")
    monitel.set_step(7)
    hangs, resume = threading.Event(), threading.Event()
    began: list[ranges.Range] = []

    def backend(module: Any, _inputs: Any) -> Any:
        hangs.set()
        resume.wait(_DEADLINE)
        return module.forward

    thread = threading.Thread(target=lambda: torch.compile(plain, backend=backend)(torch.ones(2)))
    with ranges.listen(began=began.append):
        thread.start()
        assert hangs.wait(_DEADLINE)
        monitel.set_step(8)
        (event,) = compilations(events)
        (range_,) = began
        assert ("torch.compile", None) == (range_.name, range_.end_ns)
        assert "step" == activity()  # the training thread does something else
        resume.set()
        thread.join(_DEADLINE)
    assert ("torch.compile.started", 2, 7) == (*(event.name, event.data["training.rank"], event.data["training.step"]),)
    assert event.data["compile.id"] == range_.args["compile.id"]
    assert range_.end_ns is not None
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in compilations(events)]


def test_failed_compilation_is_an_error(events: list[monitel.Event]) -> None:
    """The exception is torch's, the event has its message, and range and activity end."""
    began: list[ranges.Range] = []

    def broken(_module: Any, _inputs: Any) -> Any:
        assert "compile" == activity()
        raise ValueError("no such backend")

    with ranges.listen(began=began.append), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(plain, backend=broken)(torch.ones(2))
    assert "startup" == activity()
    assert [True] == [each.end_ns is not None for each in began]
    _, ended = compilations(events)
    assert ("torch.compile", monitel.Severity.ERROR) == (ended.name, ended.severity)
    assert "no such backend" in str(ended.data["compile.failure.reason"])
