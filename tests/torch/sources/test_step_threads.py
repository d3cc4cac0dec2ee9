"""Training steps in several threads, and in threads that Python did not start."""

from __future__ import annotations

import _thread
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from monitel.torch.sources import steps  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch
_DEADLINE = 60


def optimizer() -> Any:
    """Make an optimizer of one parameter that has a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1)


def in_thread(action: Callable[[], object]) -> None:
    """Run an action in a thread, and wait for its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(_DEADLINE)
    assert not thread.is_alive()


def in_foreign_thread(action: Callable[[], object]) -> None:
    """Run an action in a thread that the module ``threading`` has not started, as autograd does on a GPU."""
    ended = threading.Event()

    def run() -> None:
        action()
        ended.set()

    _thread.start_new_thread(run, ())
    assert ended.wait(_DEADLINE)


@pytest.mark.parametrize("is_foreign", [True, False])
def test_foreign_thread_does_not_become_the_training_thread(run_script: Any, is_foreign: bool) -> None:
    """An optimizer within backward on a GPU steps in autograd's thread, while the training thread waits for it."""
    ended = run_script(
        f"""
import _thread, threading
import torch
import monitel, monitel.torch
from monitel import activities

monitel.torch.instrument()
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
ended = threading.Event()

def run():
    torch.optim.SGD([parameter], lr=0.1).step()
    ended.set()

if {is_foreign}:
    _thread.start_new_thread(run, ())
else:
    threading.Thread(target=run).start()
assert ended.wait(60)
with monitel.activity("evaluation"):
    owner, current, _ = activities.position()
print(owner == threading.get_ident(), current, monitel.ledger().current, monitel.ledger().ignored)
"""
    )
    assert ["True evaluation step 0" if is_foreign else "False step step 1"] == ended.lines


def test_two_optimizers_in_two_threads_count_all_steps(windows: Any, totals: Any) -> None:
    """Each thread has its own steps, even if the threads take turns exactly."""
    end = windows()
    together = threading.Barrier(2, timeout=_DEADLINE)

    def train() -> None:
        own = optimizer()
        for _ in range(10):
            together.wait()
            own.step()

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE)
    duration = end()["training.step.duration"]
    assert (20, 20, 18) == (totals()["steps"], monitel.get_step(), duration.count)


def test_no_step_is_lost_between_threads(
    windows: Any, totals: Any, run_threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may run after the step of the process is read, before it is set."""
    pause = threading.Event()

    def slow_get_step() -> int | None:
        step = monitel.get_step()
        pause.wait(0.0001)
        return step

    monkeypatch.setattr(steps, "get_step", slow_get_step)
    end = windows(samples_per_step=3)

    def train() -> None:
        own = optimizer()
        for _ in range(50):
            own.step()

    run_threads(*[train] * 8)
    end()
    assert {"steps": 400, "steps.skipped": 0, "samples": 1200} == totals()
    assert 400 == monitel.get_step()


def test_step_within_a_step_of_another_thread_is_counted(windows: Any, totals: Any) -> None:
    """A step within the duration of another one does not suppress it."""
    one, other = optimizer(), optimizer()
    end = windows()
    one.step()
    one.step(lambda: in_thread(other.step))
    end()
    assert 3 == totals()["steps"]


def test_turns_of_two_optimizers_in_each_thread(windows: Any, totals: Any) -> None:
    """A generator and a critic that take turns in each of two threads make one step per turn and thread."""
    end = windows()

    def train() -> None:
        generator, critic = optimizer(), optimizer()
        for _ in range(5):
            critic.step()
            generator.step()

    train()
    in_thread(train)
    end()
    assert 10 == totals()["steps"]


def test_duration_continues_in_the_next_thread(windows: Any, totals: Any, clock: Any) -> None:
    """A loop that trains each epoch in a new thread has the durations of a loop in one thread."""
    own = optimizer()
    end = windows()

    def epoch() -> None:
        for _ in range(2):
            clock.advance(3)
            own.step()

    for _ in range(3):
        in_thread(epoch)
    duration = end()["training.step.duration"]
    assert (6, 5, 15.0) == (totals()["steps"], duration.count, duration.sum)


@pytest.mark.parametrize("run", [in_thread, lambda action: action()], ids=["thread", "main"])
def test_optimizers_within_backward_of_a_device_make_one_step(run: Any, windows: Any, totals: Any) -> None:
    """On a GPU, autograd runs hooks in threads that it has started. Their optimizers belong to the trainer's step."""
    layers, rest = [optimizer() for _ in range(4)], optimizer()
    end = windows()

    def train() -> None:
        for _ in range(5):
            for layer in layers:
                in_foreign_thread(layer.step)
            rest.step()

    run(train)
    end()
    assert 5 == totals()["steps"]


FORKS = """\
import torch, monitel.torch

running = monitel.torch.instrument(window_size=float("inf"))
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=0.1)
steps, samples = monitel.counter("training.steps"), monitel.counter("training.samples")
optimizer.step()
samples.add(100)
optimizer.step()

def child():
    for _ in range(3):
        samples.add(5)
        optimizer.step()
    with monitel.testing.capture_events() as events:
        running.uninstrument()
    rates = [event.data for event in events if event.window is None]
    say("child", steps.total, samples.total, [event.window.count for event in events if event.window])
    say(*(sorted(each) for each in rates), all(0 < each["training.samples.rate"] for each in rates))

lock = monitel.torch.instrumentation._running._sources["steps"]._lock
holder = threading.Thread(target=lock.acquire)  # holds it while the process forks
holder.start()
holder.join()
pid = os.fork()
if not pid:
    within(20, child)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
say("parent", steps.total)
os._exit(0)  # the lock is held
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_starts_without_steps(run_script: Any) -> None:
    """A lock that a thread of the parent held does not block the child. Neither durations nor rates begin there."""
    ended = run_script(FORKS)
    assert ["child 3 15 [2]", "['training.samples.rate'] True", "parent 2"] == ended.lines
