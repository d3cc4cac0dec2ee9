"""Waiting for batches as the activity ``data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402  after the check for torch

import monitel.torch  # noqa: E402
from monitel.torch.boundaries.batch_loading import BatchLoading  # noqa: E402
from monitel.torch.boundaries.training_thread import TrainingThread  # noqa: E402
from monitel.torch.sources.checkpoints import Checkpoints  # noqa: E402
from monitel.torch.sources.data_activity import DataActivity  # noqa: E402

pytestmark = pytest.mark.torch


class Items(Dataset):  # type: ignore[misc]
    """Three items, each of which takes a second."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        self._book.wait(1)
        if index > 2:
            raise ValueError("no such item")
        return index


class Stream(IterableDataset):  # type: ignore[misc]
    """A stream that takes 10 s to open, and a second for each of two items."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def __iter__(self) -> Iterator[int]:
        self._book.wait(10)
        return self._items()

    def _items(self) -> Iterator[int]:
        for index in range(2):
            self._book.wait(1)
            yield index


@pytest.fixture(autouse=True)
def source() -> Iterator[DataActivity]:
    """Install the source."""
    source = DataActivity(BatchLoading(TrainingThread()))
    source.install()
    yield source
    source.remove()


def test_waiting_for_a_batch_is_data(book: Book) -> None:
    """A wait during startup counts too, and does not end startup. The time between two batches is not included."""
    for _ in DataLoader(Items(book)):
        book.wait(100)
        break
    assert {"data": 1, "startup": 100} == book.seconds
    monitel.set_step(1)
    for _ in DataLoader(Items(book)):
        book.wait(1000)
    assert {"data": 4, "startup": 100, "step": 3000} == book.seconds


def test_opening_a_loader_is_data(book: Book) -> None:
    """This starts the workers. An iterable dataset may open files."""
    monitel.set_step(1)
    assert 2 == len(list(DataLoader(Stream(book))))
    assert {"data": 12} == book.seconds


@pytest.mark.parametrize("around", [DataLoader, lambda items: (items[index] for index in range(3))])
def test_batches_of_any_iterator_are_data(book: Book, around: Any) -> None:
    """A DataLoader inside is not counted twice."""
    monitel.set_step(1)
    for _ in monitel.torch.batches(around(Items(book))):
        book.wait(100)
    assert {"data": 3, "step": 300} == book.seconds


def test_evaluation_and_checkpoints_include_their_data(book: Book) -> None:
    """In any other activity the innermost one counts: a wait for a batch there is ``data``."""
    loader = DataLoader(Items(book))
    monitel.set_step(1)
    for name in ("evaluation", "checkpoint.save", "checkpoint.load", "rollout"):
        with monitel.activity(name):
            list(loader)
    assert {"evaluation": 3, "checkpoint.save": 3, "checkpoint.load": 3, "data": 3} == book.seconds


def test_data_ends_with_an_exception(book: Book) -> None:
    """The exception of the dataset reaches the loop unchanged."""
    monitel.set_step(1)
    batches = iter(DataLoader(Items(book), sampler=[3]))
    with pytest.raises(ValueError, match="no such item"):
        next(batches)
    book.wait(5)
    assert {"data": 1, "step": 5} == book.seconds


def test_batches_of_other_threads_do_not_count(book: Book, other: Other) -> None:
    """A prefetching thread loads while the training thread computes."""
    monitel.set_step(1)
    other.run(lambda: list(DataLoader(Items(book))))
    assert {"step": 3} == book.seconds


def test_removed_source_counts_nothing(book: Book, source: DataActivity) -> None:
    """If somebody else has wrapped a method since, the wrapper of the source passes calls on."""
    ours = DataLoader.__iter__
    calls = []

    def wrapped(loader: Any) -> Any:
        calls.append(loader)
        return ours(loader)

    monitel.set_step(1)
    try:
        DataLoader.__iter__ = wrapped
        source.remove()
        assert [0, 1, 2] == [int(item) for item in DataLoader(Items(book))]
        assert wrapped is DataLoader.__iter__
        assert 1 == len(calls)
    finally:
        DataLoader.__iter__ = ours
        source.remove()
    assert "_BaseDataLoaderIter" not in DataLoader.__iter__.__qualname__
    assert {"step": 3} == book.seconds


class Files(Dataset):  # type: ignore[misc]
    """Reads a file with torch.load, and returns the number of events that this process has seen."""

    def __init__(self, path: Path, events: list[monitel.Event]) -> None:
        self._path = path
        self._events = events

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _index: int) -> int:
        assert 5 == torch.load(self._path)
        return len(self._events)


@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_loads_files_is_data(tmp_path: Path, workers: int) -> None:
    """In the process itself and in a forked worker: these files are not checkpoints, and have no events."""
    torch.save(5, tmp_path / "item.pt")
    checkpoints = Checkpoints()
    checkpoints.install()
    try:
        with monitel.testing.capture_events() as events:
            files = Files(tmp_path / "item.pt", events)
            context = "fork" if workers else None
            seen = [int(each) for each in DataLoader(files, num_workers=workers, multiprocessing_context=context)]
    finally:
        checkpoints.remove()
    assert [0, 0] == seen
    assert [] == events
    found = monitel.ledger()
    assert found is not None
    assert "checkpoint.load" not in found.activities
    assert found.activities["data"] > 0
    assert found.elapsed_ns == sum(found.activities.values())
