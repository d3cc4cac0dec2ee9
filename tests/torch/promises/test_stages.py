"""The stages of each cycle of a training loop add up to it, to the nanosecond, whatever the loop does.

A batch takes 1 s, forward 2 s, backward 4 s, the optimizer 8 s, other work 32 s, a batch of an evaluation 100 s.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import ROOT
from tests.support.producers import run_together
from tests.torch.known_work import STEP, Work, logged_cycles, train

import monitel
import monitel.torch
from monitel.testing import ManualClock

Run = Callable[..., Any]


def test_samples_have_unit_stage_and_group(work: Work) -> None:
    """One series for each stage, with one sample for each cycle. One process has no ``sync``."""
    with monitel.testing.capture_events() as events, monitel.torch.instrument(rank_group="encoder"):
        train(work, 11)
    found = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
    assert {("s", "encoder")} == {(each.unit, each.attributes["training.group"]) for each in found}
    assert {*STEP} == {each.attributes["training.stage"] for each in found}
    for stage, seconds in STEP.items():
        windows = [each for each in found if each.attributes["training.stage"] == stage]
        assert (10, 10 * seconds) == (sum(each.count for each in windows), sum(each.sum for each in windows))


def _each_without_gradients(work: Work) -> None:
    for _ in work.loader(3):
        with torch.no_grad():
            work.takes(100)


def _forty_loaders(work: Work) -> None:
    for _ in range(40):
        work.evaluate(work.loader(4), 2)


#: What an evaluation does, and its seconds.
EVALUATIONS: dict[str, tuple[Callable[[Work], object], float]] = {
    "exhausted": (lambda work: work.evaluate(work.loader(3)), 303),
    "broken off": (lambda work: work.evaluate(work.loader(10), 3), 303),
    "no_grad": (torch.no_grad()(lambda work: work.evaluate(work.loader(10), 3)), 303),
    "each batch without gradients": (_each_without_gradients, 303),
    "forty loaders": (_forty_loaders, 40 * 202),
    "without a loader": (lambda work: work.takes(200), 200),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluation_between_steps_is_other(name: str, work: Work, cycles: Run) -> None:
    """In the middle and at the end of an epoch, its batches included."""
    evaluate, seconds = EVALUATIONS[name]

    def loop() -> None:
        for _ in range(2):
            for index, _ in enumerate(work.loader(3)):
                work.step()
                if index == 1:
                    evaluate(work)
            evaluate(work)

    evaluated = {**STEP, "other": 32 + seconds}
    assert [STEP, evaluated, evaluated, STEP, evaluated] == cycles(loop)


def test_evaluation_before_the_optimizer_delays_the_next_cycle(work: Work, cycles: Run) -> None:
    """The batch for training was asked before backward, so its stages are right."""

    def loop() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            work.evaluate(work.loader(3))
            work.optimize()

    assert [{"optimizer": 8, "other": 303, "data": 1, "forward": 2, "backward": 4}] * 2 == cycles(loop)


def test_evaluation_before_forward_makes_forward_other(work: Work, cycles: Run) -> None:
    """The begin of ``forward`` is not known then. Batches without gradients do not train, even if asked as often."""

    def loop() -> None:
        for _ in work.loader(3):
            work.evaluate(work.loader(3))
            work.step()

    def without_gradients() -> None:
        for _ in work.loader(3):
            with torch.no_grad():
                work.evaluate(work.loader(10), 1)
            work.step()

    late = {"optimizer": 8, "other": 34, "data": 1, "backward": 4}
    assert [{**late, "other": 34 + 303}] * 2 == cycles(loop)
    assert [{**late, "other": 34 + 101}] * 2 == cycles(without_gradients)


@pytest.mark.parametrize("asked_at_once", [False, True])
def test_gradient_accumulation_is_one_cycle(asked_at_once: bool, work: Work, cycles: Run) -> None:
    """A cycle has the stages of all its micro-batches; the last one of the epoch has fewer."""

    def chunks() -> Any:
        iterator = iter(work.loader(8))
        for size in (3, 3, 2):
            yield [next(iterator) for _ in range(size)] if asked_at_once else (next(iterator) for _ in range(size))

    def loop() -> None:
        for chunk in chunks():
            for _ in chunk:
                work.forward().backward()
            work.optimize()

    full = {"optimizer": 8, "data": 3, "forward": 6, "backward": 12}
    assert [full, {"optimizer": 8, "data": 2, "forward": 4, "backward": 8}] == cycles(loop)


def test_optimizers_after_one_backward_are_one_cycle(work: Work, cycles: Run) -> None:
    """Their time is added, with what is between them."""
    optimizers = [work.optimizer() for _ in range(3)]

    def loop() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            for each in optimizers:
                each.step()
                work.takes(0.5)

    assert [{"optimizer": 25, "other": 0.5, "data": 1, "forward": 2, "backward": 4}] * 2 == cycles(loop)


def test_generator_and_critic_are_two_cycles(work: Work, cycles: Run) -> None:
    """Each has its backward and its optimizer. The batch is part of the first one's."""
    critic, generator = work.optimizer(), work.optimizer()

    def loop() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            critic.step()
            work.forward(seconds=20, backward=40).backward()
            generator.step()
            work.takes(32)

    first, second = STEP, {"optimizer": 8, "forward": 20, "backward": 40}
    assert [second, first, second, first, second] == cycles(loop)


def test_parts_of_a_closure_belong_to_the_stages_that_they_run(work: Work, cycles: Run) -> None:
    """Lightning runs forward and backward in the optimizer's step, and micro-batches without it."""

    def closure() -> None:
        work.forward().backward()

    def loop() -> None:
        for index, _ in enumerate(work.loader(9), 1):
            if index % 3:
                closure()
            else:
                work.optimize(closure)
                work.takes(32)

    assert [{"optimizer": 8, "other": 32, "data": 3, "forward": 6, "backward": 12}] * 2 == cycles(loop)


def test_closure_that_is_called_several_times_is_one_cycle(work: Work, cycles: Run) -> None:
    """By LBFGS, for example."""
    optimizer = torch.optim.LBFGS([work.parameter], lr=1e-3, max_iter=3, tolerance_grad=0, tolerance_change=0)
    calls: list[int] = []

    def closure() -> Any:
        calls[-1] += 1
        optimizer.zero_grad()
        loss = work.forward(work.parameter.square())
        loss.backward()
        return loss

    def loop() -> None:
        for _ in work.loader(3):
            calls.append(0)
            optimizer.step(closure)
            work.takes(32)

    found = cycles(loop)
    assert min(calls) > 1
    assert [{"other": 32, "data": 1, "forward": 2 * each, "backward": 4 * each} for each in calls[1:]] == found


def test_optimizer_inside_backward_is_backward(work: Work, cycles: Run) -> None:
    """As with one optimizer for each parameter. An optimizer after it belongs to the same cycle."""
    inner, outer = work.optimizer(), work.optimizer()

    def loop() -> None:
        for index, _ in enumerate(work.loader(4)):
            work.forward(backward=inner.step).backward()
            if index > 1:
                outer.step()
            work.takes(32)

    inside = {"other": 32, "data": 1, "forward": 2, "backward": 8}
    assert [inside, inside, {**inside, "optimizer": 8}] == cycles(loop)


def test_step_that_gradient_scaling_skips_ends_a_cycle(work: Work, cycles: Run) -> None:
    """Its other stages took place."""
    optimizer = torch.optim.SGD([work.parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def loop() -> None:
        for index, _ in enumerate(work.loader(4)):
            scaler.scale(work.forward() * (float("inf") if index % 2 else 1.0)).backward()
            work.takes(0.25)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            work.takes(32)

    assert [{**STEP, "optimizer": 0.25}] * 3 == cycles(loop)
    assert 0.25 == scaler.get_scale()  # two steps were skipped


def test_zipped_and_alternating_loaders_are_data(work: Work, cycles: Run) -> None:
    """Loaders that are asked equally often, or as the last one. A loader that is asked less often is ``other``."""

    def zipped() -> None:
        for _ in zip(work.loader(3), work.loader(9, 16), strict=False):
            work.step()

    def alternating() -> None:
        tasks = iter(work.loader()), iter(work.loader(seconds=16))
        for index in range(4):
            next(tasks[index % 2])
            work.step()

    def side() -> None:
        training, other = iter(work.loader()), iter(work.loader(seconds=16))
        for _ in range(3):
            next(other)
            next(training)
            next(training)
            work.step()

    assert [{**STEP, "data": 17}] * 2 == cycles(zipped)
    assert [{**STEP, "data": seconds} for seconds in (16, 1, 16)] == cycles(alternating)
    assert [{**STEP, "other": 32 + 16, "data": 2}] * 2 == cycles(side)


def test_without_batches_all_before_backward_is_forward(work: Work, cycles: Run) -> None:
    """Any iterable is a source of batches with ``batches()``."""

    def loop(batches: Any) -> None:
        for _ in batches:
            work.step()

    assert [{"optimizer": 8, "forward": 32 + 1 + 2, "backward": 4}] * 2 == cycles(lambda: loop(work.batches(3)))
    assert [STEP] * 2 == cycles(lambda: loop(monitel.torch.batches(work.batches(3))))


def test_gradients_of_a_penalty_are_forward(work: Work, cycles: Run) -> None:
    """``torch.autograd.grad()`` belongs to the stage in which it is called; alone it makes no cycle."""

    def penalty() -> None:
        for _ in work.loader(3):
            loss = work.forward(work.parameter.square())
            (gradient,) = torch.autograd.grad(loss, work.parameter, create_graph=True)
            (loss + gradient.square().sum()).backward()
            work.optimize()
            work.takes(32)

    def alone() -> None:
        for _ in work.loader(3):
            (work.parameter.grad,) = torch.autograd.grad(work.forward(), work.parameter)
            work.optimize()

    assert [{**STEP, "forward": 2 + 4}] * 2 == cycles(penalty)
    assert [] == cycles(alone)


class FailingBatches:
    """Batches of 1 s, the third of which fails after 16 s; asked again, it arrives."""

    def __init__(self, work: Work, error: type[BaseException]) -> None:
        self._work, self._error, self._asked = work, error, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._asked += 1
        self._work.takes(16 if self._asked == 3 else 1)
        if self._asked == 3:
            raise self._error("no batch")
        return self._asked


def _fail(work: Work, error: type[BaseException]) -> None:
    work.takes(16)
    raise error("in this stage")


def _in_data(work: Work, error: type[BaseException]) -> None:
    batches = iter(monitel.torch.batches(FailingBatches(work, error)))
    for _ in range(4):
        try:
            next(batches)
        except error:
            next(batches)
        work.step()


def _in_forward(work: Work, error: type[BaseException]) -> None:
    for index, _ in enumerate(work.loader(5)):
        with suppress(error):
            if index == 2:
                _fail(work, error)
            work.step()


def _in_backward(work: Work, error: type[BaseException]) -> None:
    for index, _ in enumerate(work.loader(5)):
        with suppress(error):
            work.forward(backward=(lambda: _fail(work, error)) if index == 2 else 4).backward()
            work.optimize()
            work.takes(32)


def _in_optimizer(work: Work, error: type[BaseException]) -> None:
    optimizer = work.optimizer()
    work.optimize = optimizer.step
    for index, _ in enumerate(work.loader(4)):
        optimizer.error = error("no step") if index == 1 else None
        with suppress(error):
            work.step()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("loop", "interrupted"),
    [
        (_in_data, {**STEP, "data": 17}),
        (_in_forward, {**STEP, "other": 32 + 16, "data": 2}),
        (_in_backward, {**STEP, "data": 2, "forward": 4, "backward": 20}),
        (_in_optimizer, {"other": 8, "data": 1, "forward": 2, "backward": 4}),
    ],
)
def test_exception_loses_no_time(
    loop: Any, interrupted: dict[str, float], error: type[BaseException], work: Work, cycles: Run
) -> None:
    """The loop goes on, and the cycle in which a stage has raised has all its time."""
    assert [STEP, interrupted, STEP] == cycles(lambda: loop(work, error))


def test_loop_of_another_thread_has_the_same_stages(work: Work, cycles: Run) -> None:
    """In one thread, or each epoch in a new one, of which the first cycle is not known."""

    def epochs() -> None:
        for _ in range(2):
            run_together(lambda: train(work, 3))

    assert [STEP] * 3 == cycles(lambda: run_together(lambda: train(work, 4)))
    assert [STEP] * 4 == cycles(epochs)


def test_second_thread_that_trains_meanwhile_is_ignored(work: Work, clock: ManualClock, cycles: Run) -> None:
    """Until it has made 16 cycles while the first one has made none."""
    other = Work(clock)
    other.takes = float  # takes no time

    def both() -> None:
        train(work, 2)
        for _ in work.loader(6):
            work.step()
            run_together(lambda: train(other, 4))

    def takes_over() -> None:
        train(work, 2)
        run_together(lambda: train(work, 20))

    assert [STEP] * 7 == cycles(both)
    assert [STEP] + [STEP] * 3 == cycles(takes_over)  # of 19 cycles the first 16 are those of a second thread


FORK = """\
import os, monitel.torch
from tests.torch.known_work import Work, logged_cycles, train
with monitel.testing.ManualClock() as clock:
    work, running = Work(clock), monitel.torch.instrument(window_size=0.001)
    train(work, 2)
    work.forward().backward()
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    with monitel.testing.capture_events() as events:
        train(work, 3)
        running.uninstrument()
    print(logged_cycles(events), flush=True)
    os._exit(0)
"""


def test_forked_child_starts_without_a_cycle(run: Run) -> None:
    """Its first cycle begins at the end of its first backward, wherever the parent is."""
    found = run("-W", "ignore", "-c", FORK, env={"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])})
    assert f"{[{stage: float(seconds) for stage, seconds in STEP.items()}] * 2}\n" == found.stdout


class _Program:
    """Runs statements of a training loop, and notes the ends of its cycles."""

    def __init__(self, clock: ManualClock) -> None:
        self.work = Work(clock)
        self.optimizer = self.work.optimizer()
        self.loaders = [iter(self.work.loader()) for _ in range(2)]
        self.ends: list[int] = []
        self._clock = clock
        self._backward: int | None = None  # end of the last one since the end of a cycle

    def pause(self) -> None:
        """Let some nanoseconds pass."""
        self.work.takes(0.000000013)

    def batch(self) -> None:
        next(self.loaders[0])

    def evaluation(self) -> None:
        """Ask for a batch without gradients."""
        with torch.no_grad():
            next(self.loaders[1])

    def new_loader(self) -> None:
        list(self.work.loader(2))

    def backward(self, inside: float | Callable[[], object] = 4) -> None:
        with suppress(ZeroDivisionError):
            self.work.forward(backward=inside).backward()
        self._backward = self._clock.monotonic_ns()

    def failing_backward(self) -> None:
        self.backward(lambda: 1 // 0)

    def backward_with_optimizer(self) -> None:
        self.backward(self.optimizer.step)
        self._cut()

    def optimize(self) -> None:
        self.optimizer.step()
        self._cut()

    def closure(self) -> None:
        self.optimizer.step(self.backward)
        self._cut()

    def _cut(self) -> None:
        if self._backward is not None:
            self.ends.append(self._backward)
            self._backward = None


_STATEMENTS = [name for name in vars(_Program) if not name.startswith("_")]


@settings(max_examples=60)
@given(names=st.lists(st.sampled_from(_STATEMENTS), min_size=4, max_size=40))
def test_stages_of_any_loop_add_up_to_its_cycles(names: list[str]) -> None:
    """From the end of the last backward before an optimizer's step to the next such moment."""
    with (
        ManualClock() as clock,
        monitel.testing.capture_events() as events,
        monitel.torch.instrument(sources="-waits,-compilation,-failures", window_size=0.001),
    ):
        program = _Program(clock)
        for name in names:
            getattr(program, name)()
    cycles = [sum(round(seconds * 1e9) for seconds in each.values()) for each in logged_cycles(events)]
    assert [end - begin for begin, end in pairwise(program.ends)] == cycles
