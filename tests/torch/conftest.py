"""Fixtures for training loops whose parts take known times."""

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.torch.known_work import Cycles, Work, logged_cycles
from torch import distributed

import monitel
import monitel.torch
from monitel.testing import ManualClock


@pytest.fixture(scope="session", autouse=True)
def _torch_is_loaded() -> None:
    """Load torch with its compiler, which changes the environment, and keep it out of garbage collections."""
    import_module("tqdm").tqdm.monitor_interval = 0  # else a thread stays
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about itself
        for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.checkpoint"):
            import_module(name)
    gc.collect()
    gc.freeze()


@pytest.fixture
def work(clock: ManualClock) -> Work:
    return Work(clock.advance)


@pytest.fixture
def cycles(clock: ManualClock) -> Callable[..., Cycles]:
    """Provide a function that runs an action instrumented, and returns the stages of each cycle in seconds."""

    def run(action: Callable[[], object]) -> Cycles:
        with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
            action()
        return logged_cycles(events)

    return run


@pytest.fixture
def windows(clock: ManualClock) -> Iterator[Callable[..., Callable[[], dict[str, monitel.Window]]]]:
    """Provide a function that instruments. Its result ends this, and returns the windows by name or stage."""
    with ExitStack() as running:

        def start(**choices: Any) -> Callable[[], dict[str, monitel.Window]]:
            instrumentation = running.enter_context(monitel.torch.instrument(window_size=float("inf"), **choices))

            def end() -> dict[str, monitel.Window]:
                with monitel.testing.capture_events() as events:
                    instrumentation.uninstrument()
                found = [event.window for event in events if event.window]
                return {str(each.attributes.get("training.stage", each.name)): each for each in found}

            return end

        yield start


@pytest.fixture
def instrumented() -> Iterator[None]:
    with monitel.torch.instrument(window_size=float("inf")):
        yield  # nothing: pytest keeps the value until all fixtures have ended


@pytest.fixture
def only_flushes_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not start the thread that polls once a second, so that only flushes log what torch has queued."""
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda it: None if it.name == "monitel-torch" else start(it))


@pytest.fixture
def group() -> Iterator[None]:
    """Provide a process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Provide a process group of two ranks, which exchange nothing; this process is the first one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Begin and end without compiled code."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
