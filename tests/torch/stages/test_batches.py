"""monitel.torch.batches() passes on what it wraps, with and without instrumentation."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.torch.known_work import STEP, step

import monitel.torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.known_work import Cycles, Work


@pytest.fixture(params=[False, True], autouse=True, ids=["alone", "instrumented"])
def instrumented(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run each test with and without instrumentation."""
    if not request.param:
        yield False
        return
    with monitel.torch.instrument():
        torch.ones(1, requires_grad=True).sum().backward()  # the thread trains from here on
        yield True


class Indexed:
    """Can be iterated by numbers only."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise IndexError
        return index


class Restarting:
    """An iterator that each ``iter()`` starts again, as loaders of other libraries are."""

    def __init__(self) -> None:
        self._left = 0

    def __iter__(self) -> Restarting:
        self._left = 3
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


@pytest.mark.parametrize("make", [list, tuple, dict.fromkeys, lambda items: Indexed(), lambda items: range(3)])
def test_iterable_can_be_iterated_again(make: Callable[[Any], Any]) -> None:
    """Each ``for`` begins from the start, as without the function."""
    original = make([0, 1, 2])
    batches = monitel.torch.batches(original)
    assert not isinstance(batches, Iterator)
    assert [0, 1, 2] == list(batches) == list(batches)
    assert [(0, 0), (1, 1), (2, 2)] == list(zip(batches, batches, strict=True))


@pytest.mark.parametrize("make", [iter, lambda items: (each for each in items), lambda items: map(int, items)])
def test_iterator_stays_an_iterator(make: Callable[[Any], Any]) -> None:
    """``next()`` returns a batch, and a second ``for`` goes on where the first one was broken off."""
    batches = monitel.torch.batches(make([0, 1, 2, 3]))
    assert isinstance(batches, Iterator)
    assert batches is iter(batches)
    assert 0 == next(batches)
    for batch in batches:
        assert 1 == batch
        break
    assert [2, 3] == list(batches)
    assert [] == list(batches)
    assert "end" == next(batches, "end")


def test_iterator_that_starts_again() -> None:
    """``for`` calls its ``__iter__`` each time."""
    batches = monitel.torch.batches(Restarting())
    assert [2, 1, 0] == list(batches) == list(batches)


@pytest.mark.parametrize("wrong", [None, 5, object(), type("Blocked", (), {"__iter__": None})(), lambda: [1]])
def test_object_that_is_not_iterable_is_refused(wrong: Any) -> None:
    """The error names the type, at once."""
    with pytest.raises(TypeError, match=rf"batches\(\) takes an iterable, got {type(wrong).__qualname__}: "):
        monitel.torch.batches(wrong)


def test_length_is_that_of_the_original() -> None:
    """Without one, the error is Python's. Truth is that of the original, too."""
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=2)
    assert (3, 2, 0) == tuple(len(monitel.torch.batches(each)) for each in ([1, 2, 3], loader, []))
    for original in (iter([1]), (each for each in [1])):
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(monitel.torch.batches(original))
        assert monitel.torch.batches(original)
    assert not monitel.torch.batches([])
    assert isinstance(monitel.torch.batches([]), (Iterable, Sized))


def test_copies_and_pickles() -> None:
    """As far as the original can be copied."""
    batches = monitel.torch.batches([1, 2])
    assert [1, 2] == list(copy.deepcopy(batches)) == list(pickle.loads(pickle.dumps(batches)))


def test_generator_is_closed_with_its_batches() -> None:
    """When the last reference goes, as without the function."""
    closed = []

    def generated() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    batches = monitel.torch.batches(generated())
    for _ in batches:
        break
    assert [] == closed
    del batches
    assert [True] == closed


@pytest.mark.parametrize("error", [ValueError, StopIteration, RuntimeError, KeyboardInterrupt])
def test_exceptions_are_passed_on(error: type[BaseException]) -> None:
    """The object itself, with its traceback."""
    raised = error("first")

    class Failing:
        """Fails, then ends."""

        def __iter__(self) -> Failing:
            return self

        def __next__(self) -> int:
            raise raised

    with pytest.raises(error) as caught:
        next(iter(monitel.torch.batches(Failing())))
    assert raised is caught.value


def test_wrapped_twice(work: Work, instrumented: bool) -> None:
    """A wrapper around a wrapper, around a DataLoader: one request."""
    if instrumented:
        return
    optimizer = work.optimizer()
    batches = monitel.torch.batches(monitel.torch.batches(work.loader(3)))
    assert 3 == len(batches)

    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
        for _ in batches:
            step(work, optimizer)
    from tests.torch.known_work import logged_cycles

    found: Cycles = logged_cycles(events)
    assert [STEP] * 2 == found
