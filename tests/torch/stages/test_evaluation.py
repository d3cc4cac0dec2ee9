"""Requests for batches for training and for evaluation. Evaluations take 100 s a batch."""

from __future__ import annotations

import queue
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.known_work import STEP, step  # noqa: E402

import monitel.torch  # noqa: E402  after the check for torch

if TYPE_CHECKING:
    from tests.torch.stages.known_work import Cycles, Work

    Run = Callable[..., Cycles]

pytestmark = pytest.mark.torch
_DEADLINE = 60


def _each_without_gradients(work: Work) -> None:
    for _ in work.loader(3):
        with torch.no_grad():
            work.takes(100)


def _evaluate_with_many_loaders(work: Work) -> None:
    for _ in range(40):
        work.evaluate(work.loader(4), 2)


def _one_ahead(loader: Any) -> Any:
    iterator = iter(loader)
    current = next(iterator)
    for following in iterator:
        yield current
        current = following
    yield current


#: What an evaluation does, and how long it takes with batches of 1 s.
EVALUATIONS: dict[str, tuple[Callable[[Work], object], float]] = {
    "exhausted": (lambda work: work.evaluate(work.loader(3)), 303),
    "broken off": (lambda work: work.evaluate(work.loader(10), 3), 303),
    "without gradients": (torch.no_grad()(lambda work: work.evaluate(work.loader(3))), 303),
    "inference, broken off": (torch.inference_mode()(lambda work: work.evaluate(work.loader(10), 3)), 303),
    "without gradients, batches with": (_each_without_gradients, 303),
    "without a loader": (lambda work: work.takes(200), 200),
    "own iterator": (lambda work: work.evaluate(monitel.torch.batches(work.batches(3))), 303),
    "two loaders": (lambda work: work.evaluate(chain(work.loader(2), work.loader(3))), 505),
    "many loaders": (_evaluate_with_many_loaders, 40 * 202),
    "one batch ahead": (lambda work: work.evaluate(_one_ahead(work.loader(3))), 303),
    "nothing in it": (lambda work: work.evaluate(work.loader(0)), 0),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluation_between_steps_is_other(name: str, work: Work, cycles: Run) -> None:
    """Evaluate after a step, and at the end of an epoch."""
    evaluate, seconds = EVALUATIONS[name]
    optimizer = work.optimizer()

    def train() -> None:
        for _ in range(2):
            for index, _ in enumerate(work.loader(3)):
                step(work, optimizer)
                if index == 1:
                    evaluate(work)
            evaluate(work)

    evaluated = {**STEP, "other": 32 + seconds}
    assert [STEP, evaluated, evaluated, STEP, evaluated] == cycles(train)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluation_between_backward_and_the_optimizer_is_part_of_the_cycle(name: str, work: Work, cycles: Run) -> None:
    """An evaluation there delays the optimizer: without a loader it is ``optimizer``, like clipping."""
    evaluate, seconds = EVALUATIONS[name]
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            work.forward().backward()
            evaluate(work)
            optimizer.step()

    split = {"optimizer": 8 + seconds} if name == "without a loader" else {"optimizer": 8, "other": seconds}
    expected = {**split, "data": 1, "forward": 2, "backward": 4}
    assert [{stage: time for stage, time in expected.items() if time}] * 2 == cycles(train)


@pytest.mark.parametrize("name", ["exhausted", "without gradients", "inference, broken off", "many loaders exhausted"])
def test_evaluation_between_the_batch_and_forward(name: str, work: Work, cycles: Run) -> None:
    """The batch was for training. The end of the evaluation is not known, so ``forward`` is ``other``."""
    many = {"many loaders exhausted": (lambda work: [work.evaluate(work.loader(1)) for _ in range(40)], 40 * 101)}
    evaluate, seconds = (EVALUATIONS | many)[name]
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            evaluate(work)
            step(work, optimizer)

    assert [{"optimizer": 8, "other": 34 + seconds, "data": 1, "backward": 4}] * 2 == cycles(train)


def test_loader_without_gradients_for_training_is_other(work: Work, cycles: Run) -> None:
    """Then the begin of ``forward`` is not known."""
    optimizer = work.optimizer()

    def train() -> None:
        iterator = iter(work.loader())
        for _ in range(3):
            with torch.no_grad():
                next(iterator)
            step(work, optimizer)

    assert [{"optimizer": 8, "other": 35, "backward": 4}] * 2 == cycles(train)


def test_zip_of_two_loaders_is_data(work: Work, cycles: Run) -> None:
    """Both are asked equally often."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in zip(work.loader(4), work.loader(9, 16), strict=False):
            step(work, optimizer)

    assert [{**STEP, "data": 17}] * 3 == cycles(train)


def test_zip_of_two_loaders_with_accumulation_and_evaluation(work: Work, cycles: Run) -> None:
    """The evaluation takes as many batches as the loop has taken."""
    optimizer = work.optimizer()

    def train() -> None:
        for index, _ in enumerate(zip(work.loader(6), work.loader(6, 16), strict=False), 1):
            work.forward().backward()
            if index % 2 == 0:
                optimizer.step()
                with torch.no_grad():
                    work.evaluate(work.loader(2))

    assert [{"optimizer": 8, "other": 202, "data": 34, "forward": 4, "backward": 8}] * 2 == cycles(train)


def test_loaders_that_are_asked_alternately_are_data(work: Work, cycles: Run) -> None:
    """Each of two tasks has its loader."""
    optimizer = work.optimizer()

    def train() -> None:
        tasks = iter(work.loader()), iter(work.loader(seconds=16))
        for index in range(5):
            next(tasks[index % 2])
            step(work, optimizer)

    assert [{**STEP, "data": seconds} for seconds in (16, 1, 16, 1)] == cycles(train)


def test_loader_that_is_asked_less_often_is_other(work: Work, cycles: Run) -> None:
    """A batch for a side task, of which the loop takes one where it takes two for training."""
    optimizer = work.optimizer()

    def train() -> None:
        training, side = iter(work.loader()), iter(work.loader(seconds=16))
        for _ in range(3):
            next(side)
            next(training)
            next(training)
            step(work, optimizer)

    assert [{**STEP, "other": 32 + 16, "data": 2}] * 2 == cycles(train)


def test_new_iterator_in_each_step(work: Work, cycles: Run) -> None:
    """``next(iter(loader))``: the iterator is gone when backward begins, and the next one may have its id."""
    optimizer, loader = work.optimizer(), work.loader()

    def train() -> None:
        for _ in range(4):
            with torch.no_grad():
                next(iter(loader))
            next(iter(loader))  # for nothing: at the same place in memory
            next(iter(loader))
            step(work, optimizer)

    # The batch for nothing was asked as often as the last one.
    assert [{**STEP, "other": 33, "data": 2}] * 3 == cycles(train)


def test_iterator_at_the_place_of_another_one_is_another_one(work: Work, cycles: Run) -> None:
    """An evaluation that is broken off leaves its place in memory to the iterator for training."""
    optimizer, loader = work.optimizer(), work.loader()
    places = set()

    def asked(number: int) -> None:
        iterator = iter(loader)
        places.add(id(iterator))
        for _ in range(number):
            next(iterator)

    def train() -> None:
        for _ in range(4):
            asked(3)
            asked(1)
            step(work, optimizer)

    assert [{**STEP, "other": 35}] * 3 == cycles(train)
    assert len(places) < 8, "no place was used twice, so this run shows nothing"


def test_iterator_for_later_does_not_end_forward(work: Work, cycles: Run) -> None:
    """The loader of the evaluation is opened early. The batch for training stays ``data``."""
    optimizer = work.optimizer()
    kept = []

    def train() -> None:
        for _ in work.loader(3):
            kept.append(iter(work.loader()))
            step(work, optimizer)

    assert [STEP] * 2 == cycles(train)


def test_loader_within_a_loader_is_one_request(work: Work, cycles: Run) -> None:
    """A dataset that reads from another loader; the time of both is ``data``, once."""
    optimizer = work.optimizer()

    class Outer(torch.utils.data.IterableDataset):  # type: ignore[misc]
        """Reads two batches for each batch."""

        def __iter__(self) -> Any:
            iterator = iter(work.loader())
            for _ in range(3):
                work.takes(0.5)
                yield next(iterator), next(iterator)

    def train() -> None:
        for _ in monitel.torch.batches(torch.utils.data.DataLoader(Outer(), batch_size=None)):
            step(work, optimizer)

    assert [{**STEP, "data": 2.5}] * 2 == cycles(train)


def test_opening_a_loader_is_data(work: Work, cycles: Run) -> None:
    """In each epoch the loader is opened again. Its end is ``other``, as no batch comes from it."""
    optimizer = work.optimizer()

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        """Takes 16 s to open, and 64 s to end."""

        def __iter__(self) -> Any:
            work.takes(16)
            return self._items()

        def _items(self) -> Any:
            yield from work.batches(2)
            work.takes(64)

    def train() -> None:
        loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
        for _ in range(2):
            for _ in loader:
                step(work, optimizer)

    assert [STEP, {**STEP, "other": 32 + 64, "data": 17}, STEP] == cycles(train)


def test_prefetch_in_another_thread_is_forward(work: Work, cycles: Run) -> None:
    """The other thread's requests do not count. Waiting for its queue does, if ``batches()`` is around it."""
    optimizer = work.optimizer()
    made: queue.Queue[Any] = queue.Queue()

    def prefetch() -> None:
        for batch in work.loader(6):
            made.put(batch)

    def ready() -> Any:
        for _ in range(3):
            work.takes(16)
            yield made.get(timeout=_DEADLINE)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join(_DEADLINE)

    def train(batches: Any) -> None:
        for _ in batches:
            step(work, optimizer)

    assert [{"optimizer": 8, "forward": 32 + 16 + 2, "backward": 4}] * 2 == cycles(lambda: train(ready()))
    assert [{**STEP, "data": 16}] * 2 == cycles(lambda: train(monitel.torch.batches(ready())))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader(persistent: bool, work: Work, cycles: Run) -> None:
    """The times of a worker's process are not the training thread's, which only waits for it."""
    optimizer = work.optimizer()

    def train() -> None:
        loader = work.loader(2, num_workers=1, multiprocessing_context="fork", persistent_workers=persistent)
        for _ in range(2):
            for _ in loader:
                step(work, optimizer)

    assert [{"optimizer": 8, "other": 32, "forward": 2, "backward": 4}] * 3 == cycles(train)


def test_opening_an_iterator_of_batches_is_data(work: Work, cycles: Run) -> None:
    """As for a DataLoader."""
    optimizer = work.optimizer()

    class Opened:
        """Takes 16 s to open."""

        def __iter__(self) -> Any:
            work.takes(16)
            return work.batches(2)

    def train() -> None:
        for _ in range(2):
            for _ in monitel.torch.batches(Opened()):
                step(work, optimizer)

    assert [STEP, {**STEP, "data": 17}, STEP] == cycles(train)
