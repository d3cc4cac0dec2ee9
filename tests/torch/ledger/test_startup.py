"""The end of startup with the first step of an optimizer, and the training thread."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import activities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _instrumented() -> Iterator[None]:
    with monitel.torch.instrument(failures=False):
        yield


def sgd() -> Any:
    """Make an optimizer of one parameter that has a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1)


def test_first_step_of_an_optimizer_ends_startup(book: Book) -> None:
    """Steps of further optimizers change nothing."""
    book.wait(3)
    sgd().step()
    book.wait(5)
    sgd().step()
    book.wait(7)
    assert {"startup": 3, "step": 12} == book.seconds


def test_first_thread_that_steps_is_the_training_thread(book: Book, other: Other) -> None:
    """Steps of another thread later do not change that, and its activities are not counted."""
    threads: list[int] = []

    def train() -> None:
        threads.append(get_ident())
        sgd().step()
        with monitel.activity("data"):
            book.wait(2)

    other.run(train)
    sgd().step()
    book.wait(4)
    assert threads == [activities.position()[0]]
    assert {"data": 2, "step": 4} == book.seconds
    with monitel.activity("evaluation"):
        found = monitel.ledger()
    assert found is not None
    assert 1 == found.ignored
