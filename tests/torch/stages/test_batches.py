"""monitel.torch.batches() passes on what it wraps, with and without instrumentation."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import pytest
import torch

import monitel.torch


@pytest.fixture(params=[False, True], autouse=True, ids=["alone", "instrumented"])
def instrumented(request: pytest.FixtureRequest) -> Iterator[bool]:
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


@pytest.mark.parametrize("make", [list, lambda items: Indexed()])
def test_iterable_can_be_iterated_again(make: Callable[[Any], Any]) -> None:
    """Each ``for`` begins from the start, as without the function."""
    original = make([0, 1, 2])
    batches = monitel.torch.batches(original)
    assert not isinstance(batches, Iterator)
    assert [0, 1, 2] == list(batches) == list(batches)
    assert [(0, 0), (1, 1), (2, 2)] == list(zip(batches, batches, strict=True))


def test_iterator_stays_an_iterator() -> None:
    """``next()`` returns a batch, and a second ``for`` goes on where the first one was broken off."""
    batches = monitel.torch.batches(each for each in [0, 1, 2, 3])
    assert isinstance(batches, Iterator)
    assert batches is iter(batches)
    assert 0 == next(batches)
    for batch in batches:
        assert 1 == batch
        break
    assert [2, 3] == list(batches)
    assert [] == list(batches)
    assert "end" == next(batches, "end")


@pytest.mark.parametrize("wrong", [None, type("Blocked", (), {"__iter__": None})(), lambda: [1]])
def test_object_that_is_not_iterable_is_refused(wrong: Any) -> None:
    """The error names the type, at once."""
    with pytest.raises(TypeError, match=rf"batches\(\) takes an iterable, got {type(wrong).__qualname__}: "):
        monitel.torch.batches(wrong)


def test_length_is_that_of_the_original() -> None:
    """Without one, the error is Python's. Truth is that of the original, too."""
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=2)
    assert (3, 2, 0) == tuple(len(monitel.torch.batches(each)) for each in ([1, 2, 3], loader, []))
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(monitel.torch.batches(iter([1])))
    assert monitel.torch.batches(iter([1]))
    assert not monitel.torch.batches([])
    assert isinstance(monitel.torch.batches([]), (Iterable, Sized))


@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyboardInterrupt])
def test_exceptions_are_passed_on(error: type[BaseException]) -> None:
    """The object itself, with its traceback."""
    raised = error("first")

    def fail(_item: int) -> None:
        raise raised

    with pytest.raises(error) as caught:
        next(iter(monitel.torch.batches(map(fail, [1]))))
    assert raised is caught.value
