"""Steps of optimizers, also of several ones and in several threads: their number, and the time between them."""

import _thread
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from tests.support.producers import run_together
from tests.torch.known_work import ledger, sgd, total

import monitel
import monitel.torch
from monitel.testing import ManualClock


def test_steps_of_every_optimizer_are_counted(windows: Any) -> None:
    """Created later, or of a class of the user. A step that raises is not counted; the next successful one is."""

    class Mine(torch.optim.SGD):  # type: ignore[misc]
        """A subclass that overrides step()."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    sgd()  # by now torch's hooks run for SGD.step too, within that of the subclass
    end = windows()
    for kind in (torch.optim.Adam, Mine):
        made = sgd(kind)
        for fail in (0, 0, 1, 1, 0):
            with suppress(ZeroDivisionError):
                made.step(lambda fail=fail: 1 // (not fail))
    end()
    assert 6 == total("steps")


def test_optimizers_that_take_turns_make_one_step(windows: Any, clock: ManualClock) -> None:
    """A training step starts when an optimizer steps again, so durations are those of whole training steps."""
    generator, critic = sgd(), sgd()
    end = windows()
    for _ in range(3):
        clock.advance(1)
        critic.step()
        clock.advance(10)
        generator.step()
    duration = end()["training.step.duration"]
    assert (3, [11.0, 11.0]) == (total("steps"), [duration.min, duration.max])


def test_time_between_runs_is_not_a_duration(windows: Any, clock: ManualClock) -> None:
    """All steps of consecutive runs are counted, and the time between two runs is not recorded."""
    end = windows()
    for _ in range(3):
        generator, critic = sgd(), sgd()
        clock.advance(600)
        for _ in range(4):
            clock.advance(1)
            critic.step()
            generator.step()
    duration = end()["training.step.duration"]
    assert (12, 9, 9.0) == (total("steps"), duration.count, duration.sum)


def test_optimizer_at_the_address_of_an_ended_run_is_a_new_one(windows: Any, clock: ManualClock) -> None:
    """A wrapper, which is freed at once, as in a search that collects the garbage between its runs."""

    class Wrapper:
        def step(self) -> None:
            inner.step()

    inner, scaler = sgd(), torch.amp.GradScaler("cpu", enabled=False)
    end = windows()
    for _ in range(2):
        clock.advance(600)
        wrapper = Wrapper()
        for _ in range(3):
            clock.advance(1)
            scaler.step(wrapper)
        del wrapper
    duration = end()["training.step.duration"]
    assert (6, 4, 4.0) == (total("steps"), duration.count, duration.sum)


def test_counting_continues_from_the_step_of_the_loop(windows: Any) -> None:
    end, one = windows(), sgd()
    for begin in (1000, 7):
        monitel.set_step(begin)
        one.step()
        assert begin + 1 == monitel.get_step()
    end()


_DEADLINE = 60


def in_foreign_thread(action: Callable[[], object]) -> None:
    """Run an action in a thread that the module ``threading`` has not started, as autograd does on a GPU."""
    ended = threading.Event()

    def run() -> None:
        action()
        threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]  # Python keeps a dummy
        ended.set()

    _thread.start_new_thread(run, ())
    assert ended.wait(_DEADLINE)


def test_two_optimizers_in_two_threads_count_all_steps(windows: Any) -> None:
    """Each thread has its own steps, even if the threads take turns exactly."""
    end = windows()
    together = threading.Barrier(2, timeout=_DEADLINE)

    def train() -> None:
        own = sgd()
        for _ in range(10):
            together.wait()
            own.step()

    run_together(train, train)
    duration = end()["training.step.duration"]
    assert (20, 20, 18) == (total("steps"), monitel.get_step(), duration.count)


@pytest.mark.parametrize("run", [run_together, lambda action: action()], ids=["thread", "main"])
def test_optimizers_within_backward_of_a_device_make_one_step(run: Any, windows: Any) -> None:
    """On a GPU, autograd runs hooks in threads that it has started. Their optimizers belong to the trainer's step."""
    layers, rest = [sgd() for _ in range(4)], sgd()
    end = windows()

    def train() -> None:
        for _ in range(5):
            for layer in layers:
                in_foreign_thread(layer.step)
            rest.step()

    run(train)
    end()
    assert 5 == total("steps")


@pytest.mark.parametrize("foreign", [True, False])
def test_thread_of_autograd_does_not_become_the_training_thread(foreign: bool) -> None:
    """A thread that Python has not started steps within backward on a GPU, while the training thread waits."""
    with monitel.torch.instrument(sources="-failures"):
        (in_foreign_thread if foreign else run_together)(sgd().step)
        with monitel.activity("evaluation"):
            book = ledger()
    assert (("evaluation", 0) if foreign else ("step", 1)) == (book.current, book.ignored)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_counts_its_own_steps(windows: Any) -> None:
    """Neither durations nor counts continue there."""
    own = sgd()
    end = windows()
    for _ in range(2):
        own.step()
    child = os.fork()
    if not child:
        for _ in range(3):
            own.step()
        duration = end()["training.step.duration"]
        os._exit(0 if (3, 2) == (total("steps"), duration.count) else 1)
    assert 0 == os.waitpid(child, 0)[1]
    assert (2, 1) == (total("steps"), end()["training.step.duration"].count)
