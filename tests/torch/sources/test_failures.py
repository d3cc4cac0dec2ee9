"""Failures as events."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch.sources import failures  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Install the source; collect the exceptions that reach the previous hooks."""
    reached: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: reached.append(arguments[1]))
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reached.append(arguments.exc_value))
    source = failures.Failures()
    source.install()
    yield reached
    source.remove()


def uncaught(error: BaseException) -> None:
    """Call the hook as Python does for an uncaught exception."""
    sys.excepthook(type(error), error, error.__traceback__)


def raised(error: BaseException) -> BaseException:
    """Raise and catch the exception, so that it has a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def test_uncaught_exceptions_are_fatal(hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The event has type, message, stack trace, rank and step. The previous hook runs too."""
    monkeypatch.setenv("RANK", "1")
    monitel.set_step(41)
    error = raised(ValueError("no such shard"))
    with monitel.testing.capture_events() as events:
        uncaught(error)
    (event,) = events
    assert ("exception", monitel.Severity.FATAL) == (event.name, event.severity)
    trace = str(event.data.pop("exception.stacktrace"))
    assert {
        "exception.type": "ValueError",
        "exception.message": "no such shard",
        "training.rank": 1,
        "training.step": 41,
    } == event.data
    assert "in raised\n" in trace
    assert [error] == hooks


def test_undecodable_text_is_escaped(hooks: list[Any]) -> None:
    """A file name that is not valid UTF-8 is an example."""
    with monitel.testing.capture_events() as events:
        uncaught(OSError("no such file: \udcff"))
    assert ["no such file: \\udcff"] == [event.data["exception.message"] for event in events]


def test_host_allocation_failure_is_out_of_memory(hooks: list[Any]) -> None:
    """Torch's host allocator raises a RuntimeError."""
    with pytest.raises(RuntimeError) as raising:
        torch.empty(2**60, dtype=torch.uint8)
    with monitel.testing.capture_events() as events:
        uncaught(raising.value)
        uncaught(RuntimeError("shape mismatch"))
    assert [("out_of_memory", "RuntimeError"), ("exception", "RuntimeError")] == [
        (event.name, event.data["exception.type"]) for event in events
    ]
    assert f"{2**60} bytes" in str(events[0].data["exception.message"])


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_is_a_separate_event(hooks: list[Any], kind: type[Exception]) -> None:
    """This holds for memory of the GPU and of the host."""
    with monitel.testing.capture_events() as events:
        uncaught(kind("tried to allocate 20 GiB"))
    assert [("out_of_memory", "tried to allocate 20 GiB")] == [
        (event.name, event.data["exception.message"]) for event in events
    ]


def test_keyboard_interrupt_is_not_reported(hooks: list[Any]) -> None:
    """The user asked for it."""
    with monitel.testing.capture_events() as events:
        uncaught(KeyboardInterrupt())
    assert ([], 1) == (events, len(hooks))


def test_exception_in_a_thread_is_an_error(hooks: list[Any]) -> None:
    """The process continues, so the severity is not FATAL."""

    def fail() -> None:
        raise RuntimeError("prefetch")

    with monitel.testing.capture_events() as events:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join(30)
    assert [("exception", monitel.Severity.ERROR, "prefetch")] == [
        (event.name, event.severity, event.data["exception.message"]) for event in events
    ]
    assert 1 == len(hooks)


def test_handler_that_raises_does_not_hide_the_failure(hooks: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The previous hook still runs."""

    def fail(_event: monitel.Event) -> None:
        raise OSError("no route")

    with monitel.register_event_handler(fail):
        uncaught(ValueError("\udcff"))
    assert 1 == len(hooks)
    assert "an event handler raised while processing 'exception'" in caplog.text


def test_hook_of_another_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After remove(), the hook beneath it reports nothing."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    source = failures.Failures()
    source.install()
    ours = sys.excepthook

    def theirs(*arguments: Any) -> None:
        ours(*arguments)

    sys.excepthook = theirs
    source.remove()
    assert theirs is sys.excepthook
    with monitel.testing.capture_events() as events:
        uncaught(ValueError("late"))
    assert [] == events


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Provide a function that runs a script in a process, and returns its status and the logged events."""

    def run(source: str, *arguments: str) -> tuple[int, list[str]]:
        prelude = (
            "import sys\nimport monitel.torch\n"
            "monitel.register_event_handler(lambda event: print(event.severity.name, event.name, *("
            "event.data.get(key) for key in sys.argv[1:]), flush=True))\n"
        )
        script = tmp_path / "script.py"
        script.write_text(prelude + source)
        ended = subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        events = [line for line in ended.stdout.splitlines() if not line.startswith("[Gloo]")]  # torch 2.10 prints that
        return ended.returncode, events

    return run


def test_failing_process_reports_its_exception(run: Any) -> None:
    """The event is logged before the exit handlers, in which exporters deliver it."""
    assert (1, ["FATAL exception ZeroDivisionError division by zero"]) == run(
        "monitel.torch.instrument()\n1 / 0\n", "exception.type", "exception.message"
    )


COLLECTIVE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
monitel.torch.instrument()
try:
    dist.all_gather([torch.ones(3)], torch.ones(2))
except RuntimeError as error:
    pass
dist.destroy_process_group()
"""


def test_failed_collective_is_reported_even_if_caught(run: Any) -> None:
    """The event has the operation, the backend and the rank."""
    keys = ("collective.func_name", "collective.backend", "training.rank")
    assert (0, ["ERROR collective.failed all_gather gloo 0"]) == run(COLLECTIVE, *keys)


def test_instrument_does_not_load_the_compiler(run: Any) -> None:
    """Loading it takes a second, which only a job that compiles should pay."""
    script = "with monitel.torch.instrument(): pass\nmonitel.emit('torch._dynamo' in sys.modules and 'yes' or 'no')\n"
    assert (0, ["INFO no"]) == run(script)
