"""Training in several threads and in forked processes, the methods that others wrap, and memory."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.known_work import STEP, Work, logged_cycles, step  # noqa: E402

import monitel.torch  # noqa: E402  after the check for torch

if TYPE_CHECKING:
    from tests.torch.stages.known_work import Cycles

    from monitel.testing import ManualClock

    Run = Callable[..., Cycles]

pytestmark = pytest.mark.torch
_DEADLINE = 60


def in_thread(action: Callable[[], object]) -> None:
    """Run an action in a thread, and wait for its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(_DEADLINE)
    assert not thread.is_alive()


def train(work: Work, steps: int) -> None:
    """Train with a new optimizer."""
    optimizer = work.optimizer()
    for _ in work.loader(steps):
        step(work, optimizer)


def test_training_in_a_second_thread(work: Work, cycles: Run) -> None:
    """The first thread only waits for it."""
    assert [STEP] * 3 == cycles(lambda: in_thread(lambda: train(work, 4)))


def test_each_epoch_in_a_new_thread(work: Work, cycles: Run) -> None:
    """The first cycle of a thread is not known, as the thread has done nothing before."""

    def epochs() -> None:
        for _ in range(2):
            in_thread(lambda: train(work, 3))

    assert [STEP] * 4 == cycles(epochs)


def test_second_thread_that_trains_meanwhile_is_ignored(work: Work, clock: ManualClock, cycles: Run) -> None:
    """The stages are those of the first one, which still trains."""
    optimizer, other = work.optimizer(), Work(clock)
    other.takes = float  # takes no time

    def both() -> None:
        train(work, 2)
        for _ in work.loader(6):
            step(work, optimizer)
            in_thread(lambda: train(other, 4))

    assert [STEP] * 7 == cycles(both)


def test_thread_that_trains_longer_takes_over(work: Work, cycles: Run) -> None:
    """The main thread tries two steps, and then waits for the thread that trains."""

    def both() -> None:
        train(work, 2)
        in_thread(lambda: train(work, 20))

    # The first one of 20 begins a cycle, 16 are those of a second thread, and three of the training thread.
    assert [STEP] + [STEP] * 3 == cycles(both)


def test_optimizer_in_backward_in_a_thread_of_autograd(
    work: Work, cycles: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, autograd runs the hooks in a separate thread, while the training thread waits in backward."""
    optimizer = work.optimizer()
    in_backward = torch._C._current_graph_task_id
    engine: set[int] = set()

    def of_engine() -> int:
        return 0 if threading.get_ident() in engine else in_backward()

    def elsewhere() -> None:
        engine.add(threading.get_ident())
        optimizer.step()

    monkeypatch.setattr(torch._C, "_current_graph_task_id", of_engine)

    def loop() -> None:
        train(work, 2)
        for _ in work.loader(2):
            work.forward(backward=lambda: in_thread(elsewhere)).backward()
            work.takes(32)

    inside = {"other": 32, "data": 1, "forward": 2, "backward": 8}
    assert [STEP, {**inside, "optimizer": 8}, inside] == cycles(loop)


class Forked(Exception):  # noqa: N818  not an error
    """Leaves the stage in which the process has forked."""


def in_children(loop: Callable[[Callable[[], None]], object], child: Callable[[], object]) -> list[str]:
    """Run a loop with a function that forks; each child leaves the loop there. Return what the children return."""
    results, write = os.pipe()
    children: list[int] = []
    parent = os.getpid()

    def fork() -> None:
        children.append(os.fork())
        if not children[-1]:
            raise Forked

    try:
        loop(fork)
    except Forked:
        os.write(write, f"{child()}\n".encode())
    finally:
        if os.getpid() != parent:
            os._exit(0)
    os.close(write)
    with os.fdopen(results) as lines:
        found = lines.read().splitlines()
    assert [0] * len(children) == [os.waitpid(each, 0)[1] for each in children]
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_starts_empty(work: Work) -> None:
    """In whichever stage the parent is, the child's first cycle begins in its first step."""
    running = monitel.torch.instrument(window_size=0.001)

    def loop(fork: Callable[[], None]) -> None:
        optimizer = work.optimizer()

        def made() -> Iterator[None]:
            fork()
            yield

        train(work, 2)
        for _ in monitel.torch.batches(made()):
            work.takes(1000)
            fork()
            work.forward(backward=fork).backward()
            optimizer.step(fork)
            fork()

    def child() -> Cycles:
        with monitel.testing.capture_events() as events:
            train(work, 3)
            running.uninstrument()
        return logged_cycles(events)

    def within_request(fork: Callable[[], None]) -> None:
        def made() -> Iterator[None]:
            try:
                fork()
            except Forked:
                made_cycles.append(child())
            yield

        next(monitel.torch.batches(made()))
        if made_cycles:
            raise Forked

    made_cycles: list[Cycles] = []
    expected = [{stage: float(seconds) for stage, seconds in STEP.items()}] * 2
    try:
        assert [str(expected)] * 5 == in_children(loop, child)
        assert [str(expected)] == in_children(within_request, lambda: made_cycles[0])
    finally:
        running.uninstrument()


def test_functions_that_others_have_wrapped_stay(work: Work, cycles: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrappers around ours stay after the end, and pass calls on; a second instrumentation counts once."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    calls: list[str] = []

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


def test_one_sample_per_cycle_and_stage(work: Work) -> None:
    """One process has five series, with the group if that is given."""
    with (
        monitel.testing.capture_events() as events,
        monitel.torch.instrument(rank_group="encoder", window_size=float("inf")),
    ):
        train(work, 11)
    windows = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
    found = {each.attributes["training.stage"]: (each.count, each.sum, each.unit) for each in windows}
    assert {stage: (10, 10 * seconds, "s") for stage, seconds in STEP.items()} == found
    assert [{"encoder"}] == [{each.attributes["training.group"] for each in windows}]


def test_without_stages_nothing_is_wrapped(work: Work) -> None:
    """The option is True by default."""
    before = torch.autograd.Variable._execution_engine
    with monitel.testing.capture_events() as events, monitel.torch.instrument(stages=False, window_size=0.001):
        assert before is torch.autograd.Variable._execution_engine
        train(work, 3)
    assert [] == logged_cycles(events)


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
