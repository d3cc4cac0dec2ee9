"""Checkpoints by torch.save and torch.load: activities and events."""

from __future__ import annotations

import gzip
import inspect
import io
import logging
import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import checkpoints as core
from monitel.checkpoints import SAVE, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from monitel.torch.sources.checkpoints import Checkpoints  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def source() -> Iterator[Checkpoints]:
    """Install the source."""
    source = Checkpoints()
    source.install()
    yield source
    source.remove()


class Waiting:
    """An object whose loading takes 3 s of a book."""

    book: Book

    def __reduce__(self) -> Any:
        return (waited, ())


def waited() -> str:
    """Let the time of loading pass."""
    Waiting.book.wait(3)
    return "loaded"


def test_saving_and_loading_are_activities_with_events(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """The events have path, size, duration and the step at the begin. Results are those of torch."""
    Waiting.book = book
    path = tmp_path / "last.pt"
    monitel.set_step(1200)
    assert torch.save([book.slow(2), Waiting()], path) is None
    book.wait(10)
    assert [0, "loaded"] == torch.load(path, weights_only=False)
    assert {"checkpoint.save": 2, "step": 10, "checkpoint.load": 3} == book.seconds
    saved, loaded = events
    assert ("checkpoint.saved", "checkpoint.loaded") == (saved.name, loaded.name)
    for each in events:
        assert (1200, monitel.Severity.INFO) == (each.step, each.severity)
        assert (str(path), path.stat().st_size) == (each.data["checkpoint.path"], each.data["checkpoint.size"])
        assert 0 < float(each.data["checkpoint.duration"]) < 30
        assert 3 == len(each.data)


def test_loading_does_not_end_startup(book: Book, tmp_path: Path) -> None:
    """A run that resumes loads before its first step. The event has no step then."""
    Waiting.book = book
    torch.save(Waiting(), tmp_path / "x.pt", pickle_protocol=2)
    book.wait(1)
    assert {"other": 1} == book.seconds  # a process that saves has started
    book.made.begin(book._now_ns, "startup", "other")
    with monitel.testing.capture_events() as events:
        torch.load(f=tmp_path / "x.pt", weights_only=False)
    assert ("startup", None) == (monitel.activities.position()[1], events[0].step)


@pytest.mark.parametrize("zipped", [True, False])
def test_every_form_of_a_file_has_an_event(events: list[monitel.Event], tmp_path: Path, zipped: bool) -> None:
    """A path as str or PathLike, an open file, and a temporary file with a name."""
    how = {"_use_new_zipfile_serialization": zipped}
    torch.save(1, str(tmp_path / "1.pt"), **how)
    torch.save(obj=2, f=tmp_path / "2.pt", **how)
    with (tmp_path / "3.pt").open("wb") as file:
        torch.save(3, file, **how)
    with (tmp_path / "4.pt").open("w+b", buffering=0) as file:
        torch.save(4, file, **how)
    with tempfile.NamedTemporaryFile(dir=tmp_path, suffix=".pt") as file:
        torch.save(5, file, **how)
        paths = [*(str(tmp_path / f"{number}.pt") for number in range(1, 5)), file.name]
        assert paths == [each.data["checkpoint.path"] for each in events]
        assert [Path(path).stat().st_size for path in paths] == [each.data["checkpoint.size"] for each in events]
    with (tmp_path / "3.pt").open("rb") as file:
        assert 3 == torch.load(file)
    assert ("checkpoint.loaded", str(tmp_path / "3.pt")) == (events[-1].name, events[-1].data["checkpoint.path"])


def test_buffers_and_streams_have_no_event(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """Their time counts: the training thread saves. The size of a compressed file is known only when it is closed."""
    monitel.set_step(1)
    torch.save(book.slow(2), io.BytesIO())
    with gzip.open(tmp_path / "x.pt.gz", "wb") as file:
        torch.save(book.slow(3), file)
    with tempfile.TemporaryFile() as unnamed:
        torch.save(book.slow(4), unnamed)
    assert {"checkpoint.save": 9} == book.seconds
    assert [] == events


def test_failed_save_is_an_error(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """The exception is the same object, and the activity ends."""
    error = ValueError("no \udc80 state, token=hf_abcdefghijkl")
    monitel.set_step(7)
    with pytest.raises(ValueError, match=r"no .* state") as raised:
        torch.save(book.slow(2, error), tmp_path / "x.pt")
    assert error is raised.value
    book.wait(1)
    assert {"checkpoint.save": 2, "step": 1} == book.seconds
    (event,) = events
    assert ("checkpoint.failed", monitel.Severity.ERROR, 7) == (event.name, event.severity, event.step)
    assert "ValueError" == event.data["exception.type"]
    assert "abcdefghijkl" not in str(event.data["exception.message"])
    str(event.data["exception.message"]).encode()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupted_save_is_not_a_failure(
    book: Book, events: list[monitel.Event], tmp_path: Path, error: BaseException
) -> None:
    """The user has asked for it. The activity ends."""
    monitel.set_step(7)
    with pytest.raises(type(error)):
        torch.save(book.slow(2, error), tmp_path / "x.pt")
    book.wait(1)
    assert {"checkpoint.save": 2, "step": 1} == book.seconds
    assert [] == events


def test_failed_load_has_no_event(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """Programs try which checkpoint is there."""
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "missing.pt")
    with pytest.raises(TypeError):
        torch.load()
    with pytest.raises(AttributeError):
        torch.load(None)
    book.wait(1)
    assert {"startup": 1} == book.seconds
    assert [] == events


def test_event_handler_that_raises_does_not_reach_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is logged once."""
    monkeypatch.setattr(core, "_warned", False)

    def fail(_event: monitel.Event) -> None:
        raise OSError("no route")

    with monitel.register_event_handler(fail), caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.save(5, tmp_path / "x.pt")
    assert 5 == torch.load(tmp_path / "x.pt")
    assert 1 == len(caplog.records)


def test_checkpoint_of_a_trainer_is_one_event(book: Book, events: list[monitel.Event], tmp_path: Path) -> None:
    """Files that are saved within it are parts of it."""
    monitel.set_step(1)
    with Checkpoint(SAVE, tmp_path):
        book.wait(1)
        torch.save(book.slow(2), tmp_path / "model.pt")
        torch.save(book.slow(4), tmp_path / "optimizer.pt")
    assert {"checkpoint.save": 7} == book.seconds
    (event,) = events
    assert str(tmp_path) == event.data["checkpoint.path"]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) == event.data["checkpoint.size"]


@pytest.mark.parametrize("activity", ["data", "compile"])
def test_files_of_data_and_of_the_compiler_are_not_checkpoints(
    book: Book, events: list[monitel.Event], tmp_path: Path, activity: str
) -> None:
    """A loop that reads its shards with torch.load enters ``data``."""
    monitel.set_step(1)
    with monitel.activity(activity):
        torch.save(book.slow(2), tmp_path / "cache.pt")
        torch.load(tmp_path / "cache.pt", weights_only=False)
    assert {activity: 2} == book.seconds
    assert [] == events


def test_save_in_another_thread_does_not_block(
    book: Book, other: Other, events: list[monitel.Event], tmp_path: Path
) -> None:
    """Such a save has an event. A load in another thread has none, because it reads data."""
    monitel.set_step(1)
    other.run(lambda: torch.save(book.slow(2), tmp_path / "x.pt"))
    other.run(lambda: torch.load(tmp_path / "x.pt", weights_only=False))
    assert {"step": 2} == book.seconds
    (event,) = events
    assert ("checkpoint.saved", 0.0) == (event.name, event.data["checkpoint.blocked"])
    assert float(event.data["checkpoint.duration"]) > 0


@pytest.mark.parametrize("name", ["save", "load"])
def test_removed_source_restores_torch(source: Checkpoints, name: str, events: list[monitel.Event]) -> None:
    """If somebody else has wrapped a function since, the wrapper stays, and passes calls on."""
    wrapper = getattr(torch, name)
    original: Callable[..., Any] = wrapper.__wrapped__
    assert wrapper is getattr(torch.serialization, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    setattr(torch, name, wrapped)
    source.remove()
    assert (wrapped, original) == (getattr(torch, name), getattr(torch.serialization, name))
    buffer = io.BytesIO()
    torch.save(5, buffer)
    buffer.seek(0)
    assert 5 == torch.load(buffer)
    setattr(torch, name, original)
    assert [] == events


def test_signatures_and_documentation_are_torchs() -> None:
    """Tools that inspect the functions find torch's."""
    assert ["obj", "f"] == list(inspect.signature(torch.save).parameters)[:2]
    assert "Loads an object" in torch.load.__doc__
    assert torch.save is pickle.loads(pickle.dumps(torch.save))
