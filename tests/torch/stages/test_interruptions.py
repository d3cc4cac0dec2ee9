"""Instrumentation that ends within a stage, interrupts at any moment, and constant memory."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.torch.known_work import STEP, Cycles, Work, logged_cycles, step, train

import monitel
import monitel.torch
from monitel.testing import ManualClock

Run = Callable[..., Cycles]


_HOOKS = tuple(f"monitel.torch.{name}" for name in ("cycle", "device_stages", "loading", "stages", "steps"))

_LOGGING = {"_log", "_owns", "<lambda>"}


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

    def interrupted() -> None:
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
    found = cycles(interrupted)
    assert 40 < attempts[0] < 999
    # Of the three steps after each interrupt the last two are right, and all cycles add up to the time since the first.
    assert found.count(STEP) >= 2 * (attempts[0] - 1)
    first, last = 1 + 2 + 4, clock.monotonic_ns() / 1e9 - 8 - 32
    assert last - first == sum(sum(each.values()) for each in found)


@pytest.mark.parametrize("again", [False, True])
def test_uninstrument_within_a_stage(again: bool, work: Work) -> None:
    """The cycle under way is not reported. Instrumentation may begin in the same place."""
    optimizer = work.optimizer()
    running = monitel.torch.instrument(window_size=0.001)
    with monitel.testing.capture_events() as events:
        train(work, 3)
        work.forward(backward=running.uninstrument).backward()
        if again:
            running = monitel.torch.instrument(window_size=0.001)
        optimizer.step()
        work.takes(32)
        assert [STEP] * 2 == logged_cycles(events)
        events.clear()
        train(work, 3)
        running.uninstrument()
    assert ([STEP] * 2 if again else []) == logged_cycles(events)


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

    with monitel.torch.instrument(sources="-compilation,-tensors", window_size=float("inf")):
        loop()
    assert blocks[2] - blocks[1] < 5000
