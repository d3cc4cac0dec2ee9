"""The stages of each cycle of a training loop add up to it, to the nanosecond, whatever the loop does.

A batch takes 1 s, forward 2 s, backward 4 s, the optimizer 8 s, other work 32 s, a batch of an evaluation 100 s.
"""

import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import ROOT
from tests.support.producers import run_together
from tests.torch.known_work import STEP, Cycles, Work, logged_cycles, train
from torch.utils.checkpoint import checkpoint

import monitel
import monitel.torch
from monitel.testing import ManualClock

Run = Callable[..., Cycles]
Loop = Callable[[Work], object]

#: By name: a training loop, and the stages of its cycles.
LOOPS: dict[str, tuple[Loop, list[Mapping[str, float]]]] = {}
_DEADLINE = 60


def has(*expected: Mapping[str, float]) -> Callable[[Any], Any]:
    """Add a loop, whose docstring has the reason for the stages of its cycles."""

    def add(loop: Any) -> Any:
        LOOPS[loop.__name__] = loop, [*expected]
        return loop

    return add


def _forty_loaders(work: Work) -> None:
    for _ in range(40):
        work.evaluate(work.loader(4), 2)


#: What an evaluation does, and its seconds.
EVALUATIONS: dict[str, tuple[Callable[[Work], object], float]] = {
    "exhausted": (lambda work: work.evaluate(work.loader(3)), 303),
    "broken off": (lambda work: work.evaluate(work.loader(10), 3), 303),
    "no_grad": (torch.no_grad()(lambda work: work.evaluate(work.loader(10), 3)), 303),
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


@has(*[{"optimizer": 8, "other": 303, "data": 1, "forward": 2, "backward": 4}] * 2)
def evaluation_before_the_optimizer_delays_the_next_cycle(work: Work) -> None:
    """The batch for training was asked before backward."""
    for _ in work.loader(3):
        work.forward().backward()
        work.evaluate(work.loader(3))
        work.optimize()


@has(*[{"optimizer": 8, "other": 34 + 303, "data": 1, "backward": 4}] * 2)
def evaluation_before_forward_makes_forward_other(work: Work) -> None:
    """The begin of ``forward`` is not known then."""
    for _ in work.loader(3):
        work.evaluate(work.loader(3))
        work.step()


@has(*[{"optimizer": 8, "other": 34 + 101, "data": 1, "backward": 4}] * 2)
def batches_without_gradients_do_not_train(work: Work) -> None:
    """Even if they are asked as often."""
    for _ in work.loader(3):
        with torch.no_grad():
            work.evaluate(work.loader(10), 1)
        work.step()


@has(*[{"optimizer": 8, "data": number, "forward": 2 * number, "backward": 4 * number} for number in (3, 2)])
def gradient_accumulation_is_one_cycle(work: Work) -> None:
    """A cycle has the stages of all its micro-batches; the last one of the epoch has fewer."""
    iterator = iter(work.loader(8))
    for size in (3, 3, 2):
        for _ in range(size):
            next(iterator)
            work.forward().backward()
        work.optimize()


@has(*[{"optimizer": 25, "other": 0.5, "data": 1, "forward": 2, "backward": 4}] * 2)
def optimizers_after_one_backward_are_one_cycle(work: Work) -> None:
    """Their time is added, with what is between them."""
    optimizers = [work.optimizer() for _ in range(3)]
    for _ in work.loader(3):
        work.forward().backward()
        for each in optimizers:
            each.step()
            work.takes(0.5)


SECOND = {"optimizer": 8.0, "forward": 20.0, "backward": 40.0}


@has(SECOND, STEP, SECOND, STEP, SECOND)
def generator_and_critic_are_two_cycles(work: Work) -> None:
    """Each has its backward and its optimizer. The batch is part of the first one's."""
    critic, generator = work.optimizer(), work.optimizer()
    for _ in work.loader(3):
        work.forward().backward()
        critic.step()
        work.forward(seconds=20, backward=40).backward()
        generator.step()
        work.takes(32)


@has(*[{"other": 32, "data": 1, "forward": 2 * 3, "backward": 4 * 3}] * 2)
def closure_that_is_called_several_times_is_one_cycle(work: Work) -> None:
    """By LBFGS, for example: here three times."""
    optimizer = torch.optim.LBFGS([work.parameter], lr=1e-3, max_iter=3, tolerance_grad=0, tolerance_change=0)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = work.forward(work.parameter.square())
        loss.backward()
        return loss

    for _ in work.loader(3):
        optimizer.step(closure)
        work.takes(32)


INSIDE = {"other": 32.0, "data": 1.0, "forward": 2.0, "backward": 8.0}


@has(INSIDE, INSIDE, {**INSIDE, "optimizer": 8})
def optimizer_inside_backward_is_backward(work: Work) -> None:
    """As with one optimizer for each parameter. An optimizer after it belongs to the same cycle."""
    inner, outer = work.optimizer(), work.optimizer()
    for index, _ in enumerate(work.loader(4)):
        work.forward(backward=inner.step).backward()
        if index > 1:
            outer.step()
        work.takes(32)


@has(*[{**STEP, "optimizer": 0.25}] * 3)
def step_that_gradient_scaling_skips_ends_a_cycle(work: Work) -> None:
    """Its other stages took place."""
    optimizer = torch.optim.SGD([work.parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for index, _ in enumerate(work.loader(4)):
        scaler.scale(work.forward() * (float("inf") if index % 2 else 1.0)).backward()
        work.takes(0.25)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        work.takes(32)
    assert 0.25 == scaler.get_scale()  # two steps were skipped


@has(*[{**STEP, "data": 17}] * 2)
def zipped_loaders_are_data(work: Work) -> None:
    """Loaders that are asked equally often."""
    for _ in zip(work.loader(3), work.loader(9, 16), strict=False):
        work.step()


@has(*[{**STEP, "data": seconds} for seconds in (16, 1, 16)])
def alternating_loaders_are_data(work: Work) -> None:
    """Each is the last one that was asked."""
    tasks = iter(work.loader()), iter(work.loader(seconds=16))
    for index in range(4):
        next(tasks[index % 2])
        work.step()


@has(*[{**STEP, "other": 32 + 16, "data": 2}] * 2)
def loader_that_is_asked_less_often_is_other(work: Work) -> None:
    training, other = iter(work.loader()), iter(work.loader(seconds=16))
    for _ in range(3):
        next(other)
        next(training)
        next(training)
        work.step()


@has(*[{**STEP, "forward": 2 + 4}] * 2)
def gradients_of_a_penalty_are_forward(work: Work) -> None:
    """``torch.autograd.grad()`` belongs to the stage in which it is called."""
    for _ in work.loader(3):
        loss = work.forward(work.parameter.square())
        (gradient,) = torch.autograd.grad(loss, work.parameter, create_graph=True)
        (loss + gradient.square().sum()).backward()
        work.optimize()
        work.takes(32)


@has()
def gradients_without_backward_make_no_cycle(work: Work) -> None:
    for _ in work.loader(3):
        (work.parameter.grad,) = torch.autograd.grad(work.forward(), work.parameter)
        work.optimize()


def _prefetched(work: Work) -> Iterator[Any]:
    """Make batches in another thread, and wait 16 s for each."""
    made: queue.Queue[Any] = queue.Queue()
    run_together(lambda: [*map(made.put, work.loader(3))])
    for _ in range(3):
        work.takes(16)
        yield made.get(timeout=_DEADLINE)


@has(*[{"optimizer": 8, "forward": 32 + 16 + 2, "backward": 4}] * 2)
def prefetch_in_another_thread_is_forward(work: Work) -> None:
    """The other thread's requests do not count, and a plain iterable is not a source of batches."""
    for _ in _prefetched(work):
        work.step()


@has(*[{**STEP, "data": 16}] * 2)
def waiting_for_a_prefetching_thread_is_data(work: Work) -> None:
    """If ``batches()`` is around the iterator."""
    for _ in monitel.torch.batches(_prefetched(work)):
        work.step()


@has(*[{**STEP, "data": 1 + 0.25 + 0.125, "backward": 4.5}] * 2)
def backward_while_a_batch_is_made(work: Work) -> None:
    """Batches that are trained themselves, such as adversarial ones."""

    def hardened() -> Iterator[None]:
        for _ in range(3):
            work.takes(1)
            work.forward(torch.ones(1, requires_grad=True), 0.25, 0.5).backward()
            work.takes(0.125)
            yield

    for _ in monitel.torch.batches(hardened()):
        work.step()


def _recomputed(work: Work, reentrant: bool) -> None:
    for _ in work.loader(3):
        x = work.parameter * 1
        for _ in range(2):
            x = checkpoint(work.forward, x, use_reentrant=reentrant)
        x.backward()
        work.optimize()
        work.takes(32)


RECOMPUTED = {**STEP, "forward": 4, "backward": 2 * (2 + 4)}
LOOPS |= {
    "recomputed activations are backward": (partial(_recomputed, reentrant=False), [RECOMPUTED] * 2),
    "a reentrant checkpoint runs a backward within backward": (partial(_recomputed, reentrant=True), [RECOMPUTED] * 2),
}


@pytest.mark.parametrize(("loop", "expected"), LOOPS.values(), ids=LOOPS)
def test_stages_of_a_loop(loop: Loop, expected: Any, work: Work, cycles: Run) -> None:
    assert expected == cycles(lambda: loop(work))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader(persistent: bool, work: Work, cycles: Run) -> None:
    """The times of a worker's process are not the training thread's, which only waits for it."""

    def epochs() -> None:
        loader = work.loader(2, num_workers=1, multiprocessing_context="fork", persistent_workers=persistent)
        for _ in range(2):
            for _ in loader:
                work.step()

    assert [{"optimizer": 8, "other": 32, "forward": 2, "backward": 4}] * 3 == cycles(epochs)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("stage", "found"),
    [
        ("data", [STEP, {**STEP, "data": 17}, STEP]),
        ("forward", [STEP, {**STEP, "other": 32 + 16, "data": 2}, STEP]),
        ("backward", [STEP, {**STEP, "data": 2, "forward": 4, "backward": 20}, STEP]),
        ("optimizer", [STEP, STEP, {"other": 16, "data": 1, "forward": 2, "backward": 4}, STEP]),
    ],
)
def test_exception_loses_no_time(stage: str, found: Any, error: type[BaseException], work: Work, cycles: Run) -> None:
    """The third of such a stage raises after 16 s. The loop goes on, and the cycle in which it raises has that time."""
    advance, begun = work.takes, Counter[float]()

    def takes(seconds: float) -> None:
        begun[seconds] += 1
        fails = seconds == STEP[stage] and begun[seconds] == 3
        advance(16 if fails else seconds)
        if fails:
            raise error

    def loop() -> None:
        batches = iter(work.loader())
        for _ in range(5):
            with suppress(error):
                next(batches)
                work.step()

    work.takes = takes
    assert found == cycles(loop)


def test_loop_of_another_thread_has_the_same_stages(work: Work, cycles: Run) -> None:
    """In one thread, or each epoch in a new one, of which the first cycle is not known."""
    assert [STEP] * 3 == cycles(lambda: run_together(lambda: train(work, 4)))
    assert [STEP] * 4 == cycles(lambda: [*map(run_together, [lambda: train(work, 3)] * 2)])


def test_second_thread_that_trains_meanwhile_is_ignored(work: Work, cycles: Run) -> None:
    """Until it has made 16 cycles while the first one has made none."""
    other = Work(float)  # takes no time

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


FORK = f"""\
import os, sys, monitel.torch
from datetime import datetime
from torch import monitor
sys.path.insert(0, {str(ROOT)!r})
from tests.torch.known_work import Work, logged_cycles, total, train, windows_of

def report(event):
    if event.name in ("before", "after"):
        os.write(1, f"{{event.name}} {{os.getpid() == parent}}\\n".encode())

parent = os.getpid()
monitel.register_event_handler(report)
with monitel.testing.ManualClock() as clock:
    work, running = Work(clock.advance), monitel.torch.instrument(window_size=0.001)
    train(work, 2)
    work.forward().backward()
    monitor.log_event(monitor.Event("before", datetime.now(), {{}}))
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or total("steps") != 2)
    monitor.log_event(monitor.Event("after", datetime.now(), {{}}))
    with monitel.testing.capture_events() as events:
        train(work, 3)
        running.uninstrument()
    steps = [each.sum for each in windows_of(events, "training.step.duration")]
    print(total("steps"), steps, logged_cycles(events))
"""


def test_forked_child_starts_afresh(run: Any) -> None:
    """Its first cycle begins at the end of its first backward, wherever the parent is; it counts its own steps.

    The parent logs the events queued before, at its exit, where a handler of torch would crash it.
    """
    found = run("-W", "ignore", "-c", FORK).stdout
    cycles = [{stage: float(seconds) for stage, seconds in STEP.items()}] * 2
    assert ["after False", "before True", f"3 [47.0, 47.0] {cycles}"] == sorted(found.splitlines(), key=len), found


class _Program:
    """Runs statements of a training loop, and notes the ends of its cycles."""

    def __init__(self, clock: ManualClock) -> None:
        self.work = Work(clock.advance)
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
        monitel.torch.instrument(sources="stages,steps,loading", window_size=0.001),
    ):
        program = _Program(clock)
        for name in names:
            getattr(program, name)()
    cycles = [sum(round(seconds * 1e9) for seconds in each.values()) for each in logged_cycles(events)]
    assert [end - begin for begin, end in pairwise(program.ends)] == cycles
