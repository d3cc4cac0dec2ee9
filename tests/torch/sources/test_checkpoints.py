"""Checkpoints by torch.save, torch.load and torch.distributed.checkpoint: an activity and one event each."""

import gzip
import io
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.support.checks import wait_until
from tests.support.producers import run_together
from tests.torch.known_work import activity

import monitel
import monitel.torch
from monitel.training.checkpoints import SAVE, Checkpoint

pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the deprecated functions
]
_DEADLINE = 60


class Observed:
    """An object, or a state, whose saving and loading note the activity, and may raise."""

    found: list[str]

    def __init__(self, error: BaseException | None = None) -> None:
        Observed.found, self._error = [], error

    def __reduce__(self) -> Any:
        self.state_dict()
        return (self.loaded, ())

    def state_dict(self) -> dict[str, Any]:
        self.found.append(activity())
        if self._error is not None:
            raise self._error
        return {"weight": torch.ones(1000)}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        self.found.append(activity())

    @staticmethod
    def loaded() -> str:
        """Note the activity, and take the place of the object."""
        Observed.found.append(activity())
        return "loaded"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path.iterdir() if path.is_dir() else [path]))


def save_and_load(path: Path) -> None:
    torch.save([Observed()], path)
    assert ["loaded"] == torch.load(path, weights_only=False)


def save_and_load_folder(path: Path) -> None:
    state = {"model": Observed()}
    assert isinstance(dcp.save(state, checkpoint_id=path), dcp.Metadata)
    dcp.load(state, checkpoint_id=str(path))


@pytest.mark.parametrize("both", [save_and_load, save_and_load_folder])
def test_saving_and_loading_are_activities_with_events(
    both: Callable[[Path], None], events: list[monitel.Event], tmp_path: Path
) -> None:
    """The events have path, size, duration and the step. The activity ends with the call."""
    monitel.set_step(1200)
    path = tmp_path / "last.pt"
    both(path)
    assert "checkpoint.save" == Observed.found[0]
    assert "checkpoint.load" == Observed.found[-1]
    assert "step" == activity()
    assert ["checkpoint.saved", "checkpoint.loaded"] == [event.name for event in events]
    for event in events:
        assert (1200, monitel.Severity.INFO) == (event.step, event.severity)
        assert (str(path), size_of(path)) == (event.data["checkpoint.path"], event.data["checkpoint.size"])
        assert 0 < float(event.data["checkpoint.duration"]) < _DEADLINE
        assert 3 == len(event.data)


def test_every_form_of_a_file_has_an_event(events: list[monitel.Event], tmp_path: Path) -> None:
    """A path as str or PathLike, an open file, and a temporary file with a name; not a buffer or compressed file."""
    torch.save(1, str(tmp_path / "1.pt"))
    torch.save(obj=2, f=tmp_path / "2.pt")
    with (tmp_path / "3.pt").open("wb") as file:
        torch.save(3, file)
    with tempfile.NamedTemporaryFile(dir=tmp_path, suffix=".pt") as file:
        torch.save(5, file)
        paths = [*(str(tmp_path / f"{number}.pt") for number in (1, 2, 3)), file.name]
        assert paths == [each.data["checkpoint.path"] for each in events]
        assert [Path(path).stat().st_size for path in paths] == [each.data["checkpoint.size"] for each in events]
    events.clear()
    torch.save(Observed(), io.BytesIO())
    assert ["checkpoint.save"] == Observed.found
    with gzip.open(tmp_path / "x.pt.gz", "wb") as compressed, tempfile.TemporaryFile() as unnamed:
        torch.save(4, compressed)
        torch.save(4, unnamed)
    assert [] == events


@pytest.mark.parametrize(
    ("error", "failed"), [(ValueError("no \udc80 state, token=hf_abcdefghijkl"), True), (KeyboardInterrupt(), False)]
)
def test_failed_save_is_an_error(
    error: BaseException, failed: bool, events: list[monitel.Event], tmp_path: Path
) -> None:
    """The exception is the same object, and the activity ends. An interrupt is not a failure. Secrets are masked."""
    monitel.set_step(7)
    with pytest.raises(type(error)) as raised:
        torch.save(Observed(error), tmp_path / "x.pt")
    assert error is raised.value
    assert "step" == activity()
    found = [(each.name, each.severity, each.step, each.data["exception.type"]) for each in events]
    assert [("checkpoint.failed", monitel.Severity.ERROR, 7, "ValueError")] * failed == found
    for event in events:
        assert "abcdefghijkl" not in str(event.data["exception.message"])
        str(event.data["exception.message"]).encode()
    raised.value.__traceback__ = None


def test_checkpoint_of_several_files_is_one_event(events: list[monitel.Event], tmp_path: Path) -> None:
    """The checkpoint is that of a trainer. Files of data and of the compiler are not checkpoints."""
    monitel.set_step(1)
    with Checkpoint(SAVE, tmp_path):
        torch.save(Observed(), tmp_path / "model.pt")
        torch.save(4, tmp_path / "optimizer.pt")
    assert ["checkpoint.save"] == Observed.found
    assert [(str(tmp_path), size_of(tmp_path))] == [
        (event.data["checkpoint.path"], event.data["checkpoint.size"]) for event in events
    ]
    for name in ("data", "compile"):
        with monitel.activity(name):
            torch.save(Observed(), tmp_path / "cache.pt")
            torch.load(tmp_path / "cache.pt", weights_only=False)
        assert [name, name] == Observed.found
    assert 1 == len(events)


@pytest.mark.parametrize("folder", [False, True])
def test_save_in_another_thread_does_not_block(folder: bool, events: list[monitel.Event], tmp_path: Path) -> None:
    """Such a save has an event. A load in another thread has none, because it reads data."""
    monitel.set_step(1)
    path = tmp_path / "x"
    if folder:
        run_together(lambda: dcp.save({"model": Observed()}, checkpoint_id=path))
    else:
        run_together(lambda: torch.save(Observed(), path))
        run_together(lambda: torch.load(path, weights_only=False))
    assert {"step"} == {*Observed.found}
    (event,) = events
    assert ("checkpoint.saved", str(path), 0.0) == (
        *(event.name, event.data["checkpoint.path"], event.data["checkpoint.blocked"]),
    )


class SlowWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    def __init__(self, path: Path, error: BaseException | None = None) -> None:
        super().__init__(path)
        self.writes, self.allowed = threading.Event(), threading.Event()
        self._error = error

    def write_data(self, *args: Any) -> Any:
        self.writes.set()
        assert self.allowed.wait(_DEADLINE)
        if self._error is not None:
            raise self._error
        return super().write_data(*args)


@pytest.mark.parametrize("of_trainer", [False, True])
def test_asynchronous_save_counts_what_blocks(of_trainer: bool, events: list[monitel.Event], tmp_path: Path) -> None:
    """The event comes at the end, with the step at the begin, the whole duration, and the time that training lost."""
    monitel.set_step(7)
    path = tmp_path / "a"
    writer = SlowWriter(path)
    with Checkpoint(SAVE, path) if of_trainer else nullcontext():
        future = dcp.async_save({"model": Observed()}, storage_writer=writer)
    assert writer.writes.wait(_DEADLINE)
    monitel.set_step(8)
    assert (["checkpoint.save"], "step", []) == (Observed.found, activity(), events)
    writer.allowed.set()
    assert isinstance(future.result(_DEADLINE), dcp.Metadata)
    wait_until(lambda: events)  # a future wakes waiting threads before it runs its callbacks
    (event,) = events
    assert ("checkpoint.saved", 7, str(path)) == (event.name, event.step, event.data["checkpoint.path"])
    assert 0 < float(event.data["checkpoint.blocked"]) < float(event.data["checkpoint.duration"]) < _DEADLINE
    assert size_of(path) == event.data["checkpoint.size"]


def test_failed_asynchronous_save_is_an_error(events: list[monitel.Event], tmp_path: Path) -> None:
    """The future has the exception, as without monitel."""
    writer = SlowWriter(tmp_path / "a", OSError("No space left on device"))
    future = dcp.async_save({"weight": torch.ones(10)}, storage_writer=writer)
    writer.allowed.set()
    with pytest.raises(dcp.CheckpointException):
        future.result(_DEADLINE)
    wait_until(lambda: events)  # a future wakes waiting threads before it runs its callbacks
    (event,) = events
    assert ("checkpoint.failed", monitel.Severity.ERROR) == (event.name, event.severity)
    assert "torch.distributed.checkpoint.api.CheckpointException" == event.data["exception.type"]
    assert "No space left on device" in str(event.data["exception.message"])
