"""Instrumentation that ends within a stage, interrupts at any moment, wrappers of others, and constant memory."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.torch.known_work import STEP, Work, logged_cycles, step

import monitel
import monitel.torch
from monitel.profiler import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.known_work import Cycles, Work

    from monitel.testing import ManualClock

    Run = Callable[..., Cycles]
    from collections.abc import Callable

    from tests.torch.known_work import Cycles


_HOOKS = "monitel.torch.stages", "monitel.torch.boundaries"


_LOGGING = {"_log", "_owns", "<lambda>", "several_ranks"}


def _interrupting(at: int) -> Callable[[Any, str, Any], None]:
    """Return a profile function that raises KeyboardInterrupt where Python handles a signal for the n-th time.

    That is at the begin of functions, and after calls of functions in C. Only the hooks' code counts, without the
    logging of a cycle, which is lost if that is interrupted.
    """
    left = at

    def interrupt(frame: Any, event: str, _argument: Any) -> None:
        nonlocal left
        name = frame.f_globals.get("__name__", "")
        if event in {"call", "c_return"} and name.startswith(_HOOKS) and frame.f_code.co_name not in _LOGGING:
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    return interrupt


def test_interrupts_within_the_hooks_lose_nothing_for_good(work: Work, cycles: Run, clock: ManualClock) -> None:
    """As in a notebook: the cell is interrupted at any moment, and runs again."""
    optimizer = work.optimizer()

    def epoch(number: int) -> None:
        for _ in monitel.torch.batches(work.loader(number)):
            step(work, optimizer)

    def train() -> None:
        epoch(2)
        for attempt in range(1, 1000):
            sys.setprofile(_interrupting(attempt))
            try:
                epoch(2)
            except KeyboardInterrupt:
                sys.setprofile(None)
                epoch(3)
            else:
                break
            finally:
                sys.setprofile(None)
        attempts.append(attempt)

    attempts: list[int] = []
    found = cycles(train)
    assert 40 < attempts[0] < 999
    # Of the three steps after each interrupt the last two are right, and all cycles add up to the time since the first.
    assert found.count(STEP) >= 2 * (attempts[0] - 1)
    first, last = 1 + 2 + 4, clock.monotonic_ns() / 1e9 - 8 - 32
    assert last - first == sum(sum(each.values()) for each in found)


STAGES: dict[str, Callable[[Work, Any, Callable[[], None]], None]] = {}


def stage(function: Callable[[Work, Any, Callable[[], None]], None]) -> None:
    """Add a step that calls a function within one of its stages."""
    STAGES[function.__name__] = function


@stage
def other(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Make a whole step, and do something else."""
    for _ in work.loader(1):
        step(work, optimizer)
        switch()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", STAGES)
def test_uninstrument_within_a_stage(name: str, again: bool, work: Work) -> None:
    """The cycle under way is not reported. Instrumentation may begin in the same place."""
    optimizer = work.optimizer()
    running: list[Any] = []
    before = torch.autograd.Variable._execution_engine, torch.utils.data.dataloader._BaseDataLoaderIter.__next__

    def end() -> None:
        running.pop().uninstrument()

    def switch() -> None:
        end()
        if again:
            begin()

    def begin() -> None:
        running.append(monitel.torch.instrument(window_size=0.001))

    with monitel.testing.capture_events() as events, ranges.listen(ended=lambda _: None):
        begin()
        for _ in work.loader(3):
            step(work, optimizer)
        STAGES[name](work, optimizer, switch)
        assert ranges.current_range() is None
        assert [STEP] * (3 if name == "other" else 2) == logged_cycles(events)[:3]
        events.clear()
        for _ in work.loader(3):
            step(work, optimizer)
        monitel.flush()
        found = logged_cycles(events)
        if again:
            end()
    assert found[-2:] == ([STEP] * 2 if again else [])
    assert before == (
        torch.autograd.Variable._execution_engine,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )


def train(work: Work, steps: int) -> None:
    """Train with a new optimizer."""
    optimizer = work.optimizer()
    for _ in work.loader(steps):
        step(work, optimizer)


def test_functions_that_others_have_wrapped_stay(work: Work, cycles: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrappers around ours stay after the end, and pass calls on; a second instrumentation counts once."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    calls: list[str] = []
    for owner, name in (
        (iterator, "__next__"),
        (torch.utils.data.DataLoader, "__iter__"),
        (torch.autograd.Variable, "_execution_engine"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restored in the end, instead of a wrapper

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    def wrapped() -> None:
        train(work, 3)
        variable = torch.autograd.Variable
        engine = type("Engine", (), {"run_backward": variable._execution_engine.run_backward})()
        monkeypatch.setattr(variable, "_execution_engine", engine)
        wrap(engine, "run_backward")
        wrap(iterator, "__next__")
        wrap(torch.utils.data.DataLoader, "__iter__")
        calls.clear()
        train(work, 2)

    names = ["__iter__", *["__next__", "run_backward"] * 2, "__next__"]
    assert [STEP] * 4 == cycles(wrapped)
    assert names == calls
    theirs = torch.autograd.Variable._execution_engine, iterator.__next__, torch.utils.data.DataLoader.__iter__
    assert [STEP] * 2 == cycles(lambda: train(work, 3))
    assert theirs[1:] == (iterator.__next__, torch.utils.data.DataLoader.__iter__)
    assert theirs[0] is torch.autograd.Variable._execution_engine
    calls.clear()
    train(work, 2)
    assert names == calls


def test_memory_stays_constant(work: Work) -> None:
    """Over 10,000 batches with a backward, every second one with an optimizer in it."""
    optimizer = work.optimizer()
    losses = [work.forward, lambda: work.forward(backward=optimizer.step)]
    blocks: list[int] = []

    def loop() -> None:
        for batches in (10, 500, 10_000):
            for index in work.loader(batches):
                losses[index % 2]().backward()
            gc.collect()
            blocks.append(sys.getallocatedblocks())

    with monitel.torch.instrument(window_size=float("inf"), tensors=False, compilation=False):
        loop()
    assert blocks[2] - blocks[1] < 5000
