"""Failures as events: exceptions that reach Python's hooks or end a cell, and failed allocations of a GPU."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Run

import monitel
import monitel.torch

GIB = 1 << 30


def test_hook_of_another_library_stays(events: list[monitel.Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``uninstrument()`` the hook beneath it reports nothing."""
    beneath = Mock()
    monkeypatch.setattr(sys, "excepthook", beneath)
    running = monitel.torch.instrument()
    theirs = partial(sys.excepthook)
    monkeypatch.setattr(sys, "excepthook", theirs)
    running.uninstrument()
    assert theirs is sys.excepthook
    theirs(ValueError, ValueError("late"), None)
    assert (1, []) == (beneath.call_count, events)


class Cuda:
    """A stand-in for a torch with CUDA: its initialization and its allocator."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.observers: list[Callable[..., None]] = []  # called with device, requested bytes, limit, free
        patch.setattr("torch.backends.cuda.is_built", lambda: True)
        patch.setattr("torch.cuda._lazy_call", self.waiting.append)
        patch.setattr("torch._C._cuda_attach_out_of_memory_observer", self.observers.append, raising=False)
        patch.setattr("monitel.torch.failures._attached", False)  # it is attached once in a process

    def initialize(self) -> None:
        """Run the waiting functions as ``torch.cuda.init()`` does."""
        while self.waiting:
            self.waiting.pop()()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_failed_allocation_is_an_event_even_if_it_is_caught(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, clock: Any, events: list[monitel.Event]
) -> None:
    """With device, bytes, and the moment and the step of the failure, in the next flush, once."""
    monkeypatch.setenv("RANK", "3")
    with monitel.torch.instrument(sources="-stages", window_size=float("inf")):
        assert [] == cuda.observers  # attaching one would initialize CUDA
        cuda.initialize()
        (observe,) = cuda.observers
        observe(0, GIB, GIB, 0)  # before the first step
        monitel.set_step(11)
        happened = monitel.clock.now()
        observe(1, 20 * GIB, 80 * GIB, 2 * GIB)
        monitel.set_step(12)
        clock.advance(1)
        monitel.flush()
        monitel.flush()
    first, event = events
    assert (None, 0) == (first.data.get("training.step"), first.data["memory.free"])
    assert ("out_of_memory", monitel.Severity.ERROR, happened) == (event.name, event.severity, event.timestamp)
    assert {
        "message": f"out of memory on cuda:1: {20 * GIB} bytes requested, {2 * GIB} free, limit {80 * GIB}",
        "memory.device": "cuda:1",
        "memory.requested": 20 * GIB,
        "memory.limit": 80 * GIB,
        "memory.free": 2 * GIB,
        "training.rank": 3,
        "training.step": 11,
    } == event.data


@pytest.mark.usefixtures("only_flushes_poll")
def test_observer_of_allocations_is_attached_once(cuda: Cuda, events: list[monitel.Event]) -> None:
    """After ``uninstrument()`` it does nothing. Of more than a thousand failures in a second the oldest are lost."""
    for _ in range(2):
        with monitel.torch.instrument():
            cuda.initialize()
    (observe,) = cuda.observers
    observe(0, GIB, GIB, 0)
    with monitel.torch.instrument():
        for number in range(1200):
            observe(0, number, GIB, 0)
    assert (1000, 1199) == (len(events), events[-1].data["memory.requested"])


ERROR = 17  # of OTLP

#: Runs each cell of the argument, a list as JSON, and prints what IPython prints.
SHELL = """\
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
options = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
shell = InteractiveShell.instance(config=Config(options))
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell)
"""
CONFIGURE = """\
import sys, threading
import torch, monitel, monitel.torch, monitel_otlp
sys.argv = ["train.py"]
pipeline = monitel_otlp.configure(endpoint=URL, spool_dir="spool", export_interval=3600.0)
"""


def test_exceptions_in_cells_are_events(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """With ERROR, because the kernel continues. IPython shows them as before, and once instrumentation has ended.

    Interrupts and exits are not events, because the user asked for them; a cell with bad syntax has not run.
    """
    callbacks = "list(get_ipython().events.callbacks['post_run_cell'])"
    cells = [
        f"{CONFIGURE.replace('URL', repr(receiver.url))}before = {callbacks}",
        "monitel.torch.instrument(sources='-steps,-waits,-compilation')",
        "instrumentation = monitel.torch.instrument(sources='-waits,-compilation')",  # which replaces the first one
        "def load():\n    raise ValueError('no such shard')",
        "load()",
        "raise KeyboardInterrupt",
        "sys.exit(3)",
        "1 +",
        "torch.empty(2**60, dtype=torch.uint8)",
        "import asyncio\nawait asyncio.sleep(0)\nraise RuntimeError('asynchronous')",
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
        "instrumentation.uninstrument()",
        f"print('same callbacks:', before == {callbacks})",
        "raise ValueError('not observed')",
    ]
    ended = run("-c", SHELL, json.dumps(cells), env={"IPYTHONDIR": str(tmp_path / "ipython")})
    first, memory, *others = receiver.records()
    assert "in load" in first.attributes["exception.stacktrace"]
    assert ("out_of_memory", ERROR) == (memory.name, memory.severity)
    assert f"{2**60} bytes" in memory.attributes["exception.message"]
    assert [("exception", ERROR, message) for message in ("no such shard", "asynchronous", "division by zero")] == [
        (each.name, each.severity, each.attributes["exception.message"]) for each in (first, *others)
    ]
    output = ended.stdout + ended.stderr
    assert 1 == output.count("ValueError: no such shard")
    assert "same callbacks: True" in output
    assert "Error in callback" not in output
