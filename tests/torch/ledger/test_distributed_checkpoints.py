"""Checkpoints by torch.distributed.checkpoint, including asynchronous ones: activities and events."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.checkpoints import SAVE, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import torch.distributed.checkpoint as dcp  # noqa: E402  after the check for torch

from monitel.torch.sources.checkpoints import Checkpoints  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the deprecated functions
]
_DEADLINE = 60


@pytest.fixture(autouse=True)
def source() -> Iterator[Checkpoints]:
    """Install the source."""
    source = Checkpoints()
    source.install()
    yield source
    source.remove()


class State:
    """A state that takes 2 s to collect, and 3 s to load."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        self._book.wait(2)
        return {"weight": torch.ones(1000)}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Take the state."""
        self._book.wait(3)


class SlowWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """Writes once it is allowed to."""

    def __init__(self, path: Path, error: BaseException | None = None) -> None:
        super().__init__(path)
        self.writes, self.allowed = threading.Event(), threading.Event()
        self._error = error

    def write_data(self, *args: Any) -> Any:
        """Write."""
        self.writes.set()
        assert self.allowed.wait(_DEADLINE)
        if self._error is not None:
            raise self._error
        return super().write_data(*args)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(each.stat().st_size for each in folder.iterdir())


def test_saving_and_loading_are_activities_with_events(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """One event each, with folder, size and step, though several files are written."""
    monitel.set_step(1200)
    metadata = dcp.save({"model": State(book)}, checkpoint_id=tmp_path / "a")
    assert isinstance(metadata, dcp.Metadata)
    book.wait(10)
    book_of_save = book.seconds
    dcp.load({"model": State(book)}, checkpoint_id=str(tmp_path / "a"))
    assert {"checkpoint.save": 2, "step": 10} == book_of_save
    assert {"checkpoint.save": 2, "step": 10, "checkpoint.load": 5} == book.seconds
    assert ["checkpoint.saved", "checkpoint.loaded"] == [each.name for each in events]
    for each in events:
        assert (1200, str(tmp_path / "a")) == (each.step, each.data["checkpoint.path"])
        assert size_of(tmp_path / "a") == each.data["checkpoint.size"]


def test_path_of_a_writer(events: list[monitel.Event], tmp_path: Path) -> None:
    """The deprecated functions too, and a writer of several threads."""
    state = {"weight": torch.ones(10)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "a", single_file_per_rank=False, thread_count=2))
    dcp.save_state_dict(state, dcp.FileSystemWriter(tmp_path / "b"), no_dist=True)
    dcp.load_state_dict(state, storage_reader=dcp.FileSystemReader(tmp_path / "b"), no_dist=True)
    names = [(each.name, Path(str(each.data["checkpoint.path"])).name) for each in events]
    assert [("checkpoint.saved", "a"), ("checkpoint.saved", "b"), ("checkpoint.loaded", "b")] == names


def test_asynchronous_save_counts_what_blocks(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """The event comes at the end, with the step at the begin, the whole duration, and the time that training lost."""
    monitel.set_step(7)
    writer = SlowWriter(tmp_path / "a")
    future = dcp.async_save({"model": State(book)}, storage_writer=writer)
    assert isinstance(future, Future)
    assert writer.writes.wait(_DEADLINE)
    monitel.set_step(8)
    book.wait(10)
    assert {"checkpoint.save": 2, "step": 10} == book.seconds
    assert [] == events
    writer.allowed.set()
    assert isinstance(future.result(_DEADLINE), dcp.Metadata)
    (event,) = wait_for(events)
    assert ("checkpoint.saved", 7) == (event.name, event.step)
    assert 0 < float(event.data["checkpoint.blocked"]) < float(event.data["checkpoint.duration"]) < _DEADLINE
    assert size_of(tmp_path / "a") == event.data["checkpoint.size"]
    assert {"checkpoint.save": 2, "step": 10} == book.seconds


def wait_for(events: list[monitel.Event]) -> list[monitel.Event]:
    """Wait for an event: a future wakes waiting threads before it runs its callbacks."""
    for _ in range(_DEADLINE * 100):
        if events:
            break
        threading.Event().wait(0.01)
    return events


def test_failed_asynchronous_save_is_an_error(events: list[monitel.Event], tmp_path: Path) -> None:
    """The future has the exception, as without monitel."""
    writer = SlowWriter(tmp_path / "a", OSError("No space left on device"))
    future = dcp.async_save({"weight": torch.ones(10)}, storage_writer=writer)
    writer.allowed.set()
    with pytest.raises(dcp.CheckpointException):
        future.result(_DEADLINE)
    (event,) = wait_for(events)
    assert ("checkpoint.failed", monitel.Severity.ERROR) == (event.name, event.severity)
    assert "torch.distributed.checkpoint.api.CheckpointException" == event.data["exception.type"]
    assert "No space left on device" in str(event.data["exception.message"])


def test_failed_save_is_an_error(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """Torch raises an exception that is not an Exception. The activity ends."""
    monitel.set_step(1)
    writer = SlowWriter(tmp_path / "a", OSError("No space left on device"))
    writer.allowed.set()
    with pytest.raises(dcp.CheckpointException):
        dcp.save({"model": State(book)}, storage_writer=writer)
    book.wait(1)
    assert {"checkpoint.save": 2, "step": 1} == book.seconds
    assert ["checkpoint.failed"] == [each.name for each in events]


def test_asynchronous_save_within_a_checkpoint_of_a_trainer(events: list[monitel.Event], tmp_path: Path) -> None:
    """The event of the trainer's checkpoint comes at the end of the save."""
    writer = SlowWriter(tmp_path / "a")
    with Checkpoint(SAVE, tmp_path):
        future = dcp.async_save({"weight": torch.ones(10)}, storage_writer=writer)
    assert [] == events
    writer.allowed.set()
    future.result(_DEADLINE)
    (event,) = wait_for(events)
    assert str(tmp_path) == event.data["checkpoint.path"]


def test_save_in_another_thread_does_not_block(
    book: Book, other: Other, events: list[monitel.Event], tmp_path: Path
) -> None:
    """Such a save has one event. Its files are parts of it."""
    monitel.set_step(1)
    other.run(lambda: dcp.save({"model": State(book)}, checkpoint_id=tmp_path / "a"))
    assert {"step": 2} == book.seconds
    (event,) = events
    assert (str(tmp_path / "a"), 0.0) == (event.data["checkpoint.path"], event.data["checkpoint.blocked"])


def test_removed_source_restores_torch(source: Checkpoints, events: list[monitel.Event], tmp_path: Path) -> None:
    """In all modules that have the functions."""
    wrapped = dcp.save, dcp.load, dcp.async_save
    source.remove()
    assert not {*wrapped} & {dcp.save, dcp.load, dcp.async_save}
    assert dcp.state_dict_saver.save is dcp.save
    wrapped[0]({"weight": torch.ones(10)}, checkpoint_id=tmp_path / "a")
    assert [] == events
