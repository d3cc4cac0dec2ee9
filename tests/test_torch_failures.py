"""What has failed, as events."""

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

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import failures  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Listen to failures; collect what reaches the hooks that were there before."""
    reached: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: reached.append(arguments[1]))
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reached.append(arguments.exc_value))
    source = failures.Failures()
    source.install()
    yield reached
    source.remove()


def uncaught(error: BaseException) -> None:
    """Do what Python does with an exception that nobody has caught."""
    sys.excepthook(type(error), error, error.__traceback__)


def raised(error: BaseException) -> BaseException:
    """Give the exception, raised once."""
    try:
        raise error
    except BaseException as caught:
        return caught


def test_uncaught_exceptions_are_fatal(hooks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With type, message, stack trace, rank and step; the hook that was there runs too."""
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
    monitel._window.set_step(None)


def test_text_that_no_protocol_holds_is_spelt_out(hooks: list[Any]) -> None:
    """A file name that is no UTF-8, for one."""
    with monitel.testing.capture_events() as events:
        uncaught(OSError("no such file: \udcff"))
    assert ["no such file: \\udcff"] == [event.data["exception.message"] for event in events]


def test_host_memory_that_torch_cannot_have(hooks: list[Any]) -> None:
    """Its allocator's error is a RuntimeError; out of memory all the same."""
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
def test_out_of_memory_has_a_name_of_its_own(hooks: list[Any], kind: type[Exception]) -> None:
    """The GPU's and the host's."""
    with monitel.testing.capture_events() as events:
        uncaught(kind("tried to allocate 20 GiB"))
    assert [("out_of_memory", "tried to allocate 20 GiB")] == [
        (event.name, event.data["exception.message"]) for event in events
    ]


def test_an_interrupt_is_no_failure(hooks: list[Any]) -> None:
    """Somebody has pressed Ctrl-C."""
    with monitel.testing.capture_events() as events:
        uncaught(KeyboardInterrupt())
    assert ([], 1) == (events, len(hooks))


def test_a_thread_that_fails_is_an_error(hooks: list[Any]) -> None:
    """The process goes on."""

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


def test_a_handler_that_raises_hides_nothing(hooks: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The hook that was there runs all the same."""

    def fail(_event: monitel.Event) -> None:
        raise OSError("no route")

    with monitel.register_event_handler(fail):
        uncaught(ValueError("\udcff"))
    assert 1 == len(hooks)
    assert "an event 'exception' could not be handled" in caplog.text


def test_who_comes_after_us_is_left_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then ours, beneath it, says nothing more."""
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
    """Run a script in a process of its own; give its status, and the events that it logged."""

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
        return ended.returncode, ended.stdout.splitlines()

    return run


def test_a_process_that_fails_says_so(run: Any) -> None:
    """Before its exit handlers, by which exporters deliver."""
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


def test_a_collective_that_fails_is_said(run: Any) -> None:
    """Though it is caught: which operation, of which backend, by which rank."""
    keys = ("collective.func_name", "collective.backend", "training.rank")
    assert (0, ["ERROR collective.failed all_gather gloo 0"]) == run(COLLECTIVE, *keys)


def test_torch_compile_is_not_loaded(run: Any) -> None:
    """It takes a second, which only a job that compiles should pay."""
    script = "with monitel.torch.instrument(): pass\nmonitel.emit('torch._dynamo' in sys.modules and 'yes' or 'no')\n"
    assert (0, ["INFO no"]) == run(script)
