"""The stages of training loops of many kinds. Each part of a loop takes a known time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.known_work import STEP, step  # noqa: E402  after the check for torch

if TYPE_CHECKING:
    from tests.torch.stages.known_work import Cycles, Work

    Run = Callable[..., Cycles]

pytestmark = pytest.mark.torch


def test_stages_of_a_plain_loop(work: Work, cycles: Run) -> None:
    """The first cycle begins in the first step. One process has no ``sync``."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(4):
            step(work, optimizer)

    assert [STEP] * 3 == cycles(train)


def test_stages_add_up_to_the_nanosecond(work: Work, cycles: Run) -> None:
    """Fractions of a second stay exact."""
    optimizer = work.optimizer()
    moments = [0.100000001, 0.000000007, 0.123456789]

    def train() -> None:
        for _ in work.loader(3, seconds=moments[0]):
            work.forward(seconds=moments[1], backward=moments[2]).backward()
            optimizer.step()

    assert [
        {"optimizer": 8, "data": moments[0], "forward": moments[1], "backward": moments[2]},
    ] * 2 == cycles(train)


def test_clipping_and_unscaling_are_part_of_the_optimizer(work: Work, cycles: Run) -> None:
    """So is everything between backward and the optimizer."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            work.takes(0.5)
            optimizer.step()

    assert [{"optimizer": 8.5, "data": 1, "forward": 2, "backward": 4}] * 2 == cycles(train)


def test_without_an_iterator_batches_are_part_of_forward(work: Work, cycles: Run) -> None:
    """Everything from the optimizer to backward is ``forward``."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in range(3):
            work.takes(64)
            step(work, optimizer)

    assert [{"optimizer": 8, "forward": 32 + 64 + 2, "backward": 4}] * 2 == cycles(train)


def test_accumulation_is_one_cycle(work: Work, cycles: Run) -> None:
    """A cycle contains the stages of all its micro-batches."""
    optimizer = work.optimizer()

    def train() -> None:
        for index, _ in enumerate(work.loader(9), 1):
            work.forward().backward()
            if index % 3 == 0:
                optimizer.step()
                work.takes(32)

    assert [{"optimizer": 8, "other": 32, "data": 3, "forward": 6, "backward": 12}] * 2 == cycles(train)


def test_batches_of_all_micro_batches_may_be_asked_at_once(work: Work, cycles: Run) -> None:
    """The Trainer of transformers does so. The last step of an epoch has fewer."""
    optimizer = work.optimizer()

    def train() -> None:
        iterator = iter(work.loader(8))
        while chunk := [batch for batch, _ in zip(iterator, range(3), strict=False)]:
            for _ in chunk:
                work.forward().backward()
            optimizer.step()

    # zip() asks for a fourth batch before range() ends it: 4 batches, 4, then the end of the iterator.
    three = {"optimizer": 8, "forward": 6, "backward": 12}
    assert [{**three, "data": 4}] == cycles(train)


def test_end_of_an_epoch_that_is_found_out_one_batch_ahead(work: Work, cycles: Run) -> None:
    """Accelerate asks for the next batch before it returns one. The last one of an epoch has its ``forward`` too."""
    optimizer = work.optimizer()

    def one_ahead() -> Any:
        iterator = iter(work.loader(3))
        current = next(iterator)
        for following in iterator:
            yield current
            current = following
        yield current

    def train() -> None:
        for _ in range(2):
            for _ in one_ahead():
                step(work, optimizer)

    found = cycles(train)
    last = {**STEP, "data": 0}
    del last["data"]
    assert [STEP, last, {**STEP, "data": 2}, STEP, last] == found


def test_partial_accumulation_at_the_end_of_an_epoch(work: Work, cycles: Run) -> None:
    """The iterator is exhausted when some micro-batches of the step are there."""
    optimizer = work.optimizer()

    def train() -> None:
        iterator = iter(work.loader(8))
        for _ in range(3):
            chunk = []
            for _ in range(3):
                try:
                    chunk.append(next(iterator))
                except StopIteration:
                    break
            for _ in chunk:
                work.forward().backward()
            optimizer.step()

    full = {"optimizer": 8, "data": 3, "forward": 6, "backward": 12}
    assert [full, {"optimizer": 8, "data": 2, "forward": 4, "backward": 8}] == cycles(train)


def test_batch_that_is_asked_before_the_optimizer(work: Work, cycles: Run) -> None:
    """The optimizer stays ``optimizer``, and the batch is ``data`` of the cycle that has begun."""
    optimizer = work.optimizer()

    def train() -> None:
        iterator = iter(work.loader())
        next(iterator)
        for _ in range(3):
            work.forward().backward()
            next(iterator)
            work.takes(0.5)
            optimizer.step()

    assert [{"optimizer": 8, "other": 0.5, "data": 1, "forward": 2, "backward": 4}] * 2 == cycles(train)


def test_generator_and_critic_make_two_cycles_per_step(work: Work, cycles: Run) -> None:
    """Each has its backward and its optimizer. The batch is part of the first one's."""
    critic, generator = work.optimizer(), work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            critic.step()
            work.forward(seconds=20, backward=40).backward()
            generator.step()
            work.takes(32)

    first = {"optimizer": 8, "other": 32, "data": 1, "forward": 2, "backward": 4}
    second = {"optimizer": 8, "forward": 20, "backward": 40}
    assert [second, first, second, first, second] == cycles(train)


def test_several_optimizers_after_one_backward_are_one_cycle(work: Work, cycles: Run) -> None:
    """Their time is added, with what is between them."""
    optimizers = [work.optimizer() for _ in range(3)]

    def train() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            for each in optimizers:
                each.step()
                work.takes(0.5)

    assert [{"optimizer": 25, "other": 0.5, "data": 1, "forward": 2, "backward": 4}] * 2 == cycles(train)


def test_optimizer_of_each_parameter_inside_backward(work: Work, cycles: Run) -> None:
    """The optimizer is part of ``backward``, and the cycle ends with it."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            work.forward(backward=optimizer.step).backward()
            work.takes(32)

    assert [{"other": 32, "data": 1, "forward": 2, "backward": 8}] * 2 == cycles(train)


def test_optimizers_inside_backward_and_after_it_are_one_cycle(work: Work, cycles: Run) -> None:
    """The cycle that has ended with backward does not end again."""
    inner, outer = work.optimizer(), work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            work.forward(backward=inner.step).backward()
            outer.step()

    assert [{"optimizer": 8, "data": 1, "forward": 2, "backward": 8}] * 2 == cycles(train)


def test_closure_of_lightning(work: Work, cycles: Run) -> None:
    """Forward and backward are inside the optimizer's step. What follows them there is ``optimizer``."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            optimizer.step(lambda: work.forward().backward())
            work.takes(32)

    assert [STEP] * 2 == cycles(train)


def test_closure_of_lightning_with_accumulation_is_one_cycle(work: Work, cycles: Run) -> None:
    """The closures of the other micro-batches are called without the optimizer."""
    optimizer = work.optimizer()

    def closure() -> None:
        work.forward().backward()

    def train() -> None:
        for index, _ in enumerate(work.loader(9), 1):
            if index % 3:
                closure()
            else:
                optimizer.step(closure)
                work.takes(32)

    assert [{"optimizer": 8, "other": 32, "data": 3, "forward": 6, "backward": 12}] * 2 == cycles(train)


def test_optimizer_that_calls_its_closure_several_times(work: Work, cycles: Run) -> None:
    """LBFGS makes one cycle per step."""
    optimizer = torch.optim.LBFGS([work.parameter], lr=1e-3, max_iter=3, tolerance_grad=0, tolerance_change=0)
    calls: list[int] = []

    def closure() -> Any:
        calls[-1] += 1
        optimizer.zero_grad()
        loss = work.forward(work.parameter.square())
        loss.backward()
        return loss

    def train() -> None:
        for _ in work.loader(3):
            calls.append(0)
            optimizer.step(closure)
            work.takes(32)

    found = cycles(train)
    assert all(each > 1 for each in calls)
    assert [{"other": 32, "data": 1, "forward": 2 * each, "backward": 4 * each} for each in calls[1:]] == found


def test_optimizer_around_another_one_is_one_cycle(work: Work, cycles: Run) -> None:
    """The outer one passes the closure on, and takes time too."""
    inner = work.optimizer()

    class Outer(torch.optim.Optimizer):  # type: ignore[misc]
        """Calls the inner one."""

        def step(self, closure: Any = None) -> Any:
            inner.step(closure)
            work.takes(16)

    outer = Outer([work.parameter], {})

    def train() -> None:
        for index, _ in enumerate(work.loader(4)):
            if index % 2:
                outer.step(lambda: work.forward().backward())
            else:
                work.forward().backward()
                outer.step()

    assert [{"optimizer": 24, "data": 1, "forward": 2, "backward": 4}] * 3 == cycles(train)


def test_step_that_the_scaler_skips_ends_a_cycle(work: Work, cycles: Run) -> None:
    """Its other stages took place."""
    optimizer = torch.optim.SGD([work.parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scales = []

    def train() -> None:
        for index, _ in enumerate(work.loader(4)):
            loss = work.forward() * (float("inf") if index % 2 else 1.0)
            scaler.scale(loss).backward()
            work.takes(0.25)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            work.takes(32)

    assert [{"optimizer": 0.25, "other": 32, "data": 1, "forward": 2, "backward": 4}] * 3 == cycles(train)
    assert [1.0, 0.5, 0.5, 0.25] == scales


def test_optimizers_without_backward_make_no_cycle(work: Work, cycles: Run) -> None:
    """A process that only receives gradients has no stages."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(5):
            optimizer.step()

    assert [] == cycles(train)


def test_backward_without_an_optimizer_is_one_long_cycle(work: Work, cycles: Run) -> None:
    """Only an optimizer ends a cycle."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(2):
            step(work, optimizer)
        for _ in work.loader(100):
            work.forward().backward()
        optimizer.step()

    found = cycles(train)
    assert [STEP, {"optimizer": 8, "other": 32, "data": 100, "forward": 200, "backward": 400}] == found


def test_loop_inside_a_generator(work: Work, cycles: Run) -> None:
    """Work of the caller between two steps is ``other``."""
    optimizer = work.optimizer()

    def steps() -> Any:
        for _ in work.loader(3):
            work.forward().backward()
            optimizer.step()
            yield

    def train() -> None:
        for _ in steps():
            work.takes(32)

    assert [STEP] * 2 == cycles(train)
