"""Activities of the training thread: waiting for data, setting up process groups, checkpoints with one event each."""

import gzip
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.support.checks import ledger, wait_until
from tests.support.producers import run_together
from tests.torch.known_work import activity
from torch.distributed import init_process_group  # imported before instrument()
from torch.utils.data import DataLoader, IterableDataset

import monitel
import monitel.torch
from monitel.training.checkpoints import SAVE, Checkpoint

pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the deprecated functions
]
_DEADLINE = 60


def loader() -> Any:
    """Return a loader of three batches, each of which is the activity of the process."""
    return DataLoader(range(3), collate_fn=lambda _items: activity())


class Stream(IterableDataset[str]):  # type: ignore[misc]
    """Activities of the process when it is opened, and at its only item."""

    def __iter__(self) -> Iterator[str]:
        opened = activity()
        return (opened + " " + activity() for _ in range(1))


def test_waiting_for_a_batch_is_data() -> None:
    """Before the first step, when a loader is opened, by ``batches()``, and up to an exception; the loop is a step."""
    assert [("data", "startup")] * 3 == [(batch, activity()) for batch in loader()]
    monitel.set_step(1)
    assert [("data", "step")] * 3 == [(batch, activity()) for batch in loader()]
    assert [["data data"]] == list(DataLoader(Stream()))
    made = (activity() for _ in range(2))
    assert [("data", "step")] * 2 == [(item, activity()) for item in monitel.torch.batches(made)]
    with pytest.raises(ValueError, match="'data'"):
        next(iter(DataLoader([0], collate_fn=lambda _items: int(activity()))))
    assert "step" == activity()


def test_evaluation_and_checkpoints_include_their_data() -> None:
    """In any other activity the innermost one counts: a wait for a batch there is ``data``."""
    monitel.set_step(1)
    for name, found in (("evaluation", "evaluation"), ("checkpoint.save", "checkpoint.save"), ("rollout", "data")):
        with monitel.activity(name):
            assert [found] * 3 == list(loader())


def test_other_threads_do_not_count() -> None:
    """A prefetching thread loads, or sets up a group, while the training thread computes."""
    monitel.set_step(1)
    found: list[Any] = []

    def other() -> None:
        found.extend(loader())
        init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    run_together(other)
    dist.destroy_process_group()
    assert ["step"] * 3 == found


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_loads_files_is_data(tmp_path: Path, workers: int, events: list[monitel.Event]) -> None:
    """In the process itself and in a forked worker: these files are not checkpoints, and have no events."""
    torch.save(5, tmp_path / "item.pt")
    events.clear()

    def number_of_events(_items: object) -> int:
        assert 5 == torch.load(tmp_path / "item.pt")
        return len(events)

    options: Any = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    assert [0, 0] == list(DataLoader(range(2), collate_fn=number_of_events, **options))
    assert [] == events
    book = ledger()
    assert "checkpoint.load" not in book.activities
    assert book.activities["data"] > 0


def test_first_backward_ends_startup() -> None:
    """A loop may have no optimizer, which would count its steps; after a step backward changes nothing."""
    backward = torch.ones((), requires_grad=True).backward
    assert "startup" == activity()
    backward()
    assert ("step", None) == (activity(), monitel.get_step())
    monitel.set_step(1)
    with monitel.activity("evaluation"):
        backward()
        assert "evaluation" == activity()


def test_set_up_of_groups_is_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set-up does not end startup. Groups that are made during training, and meshes, are ``init`` too."""
    found: list[str] = []
    module: Any = dist.distributed_c10d
    create = module._new_process_group_helper

    def observed(*args: Any, **kwargs: Any) -> Any:
        found.append(activity())
        return create(*args, **kwargs)

    monkeypatch.setattr(module, "_new_process_group_helper", observed)
    init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert (["init"], "startup") == (found, activity())
        monitel.set_step(1)
        dist.new_group([0])
        dist.new_subgroups(1)
        monkeypatch.setattr(dist.device_mesh, "DeviceMesh", lambda **_: found.append(activity()))
        dist.init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()
    assert (["init"] * 4, "step") == (found, activity())


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


@pytest.mark.parametrize(("error", "found"), [(ValueError(), [("checkpoint.failed", 7)]), (KeyboardInterrupt(), [])])
def test_failed_save_is_an_error(error: BaseException, found: Any, events: list[monitel.Event], tmp_path: Path) -> None:
    """The exception is the same object, and the activity ends. An interrupt is not a failure."""
    monitel.set_step(7)
    with pytest.raises(type(error)) as raised:
        torch.save(Observed(error), tmp_path / "x.pt")
    assert (error, "step") == (raised.value, activity())
    assert found == [(each.name, each.step) for each in events]
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
    assert "checkpoint.saved" == event.name
    assert {"checkpoint.path": str(path), "checkpoint.blocked": 0.0}.items() <= event.data.items()


class SlowWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes, self.allowed = threading.Event(), threading.Event()

    def write_data(self, *args: Any) -> Any:
        self.writes.set()
        assert self.allowed.wait(_DEADLINE)
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
    writer = dcp.FileSystemWriter(tmp_path / "a")
    writer.write_data = Mock(side_effect=OSError("No space left on device"))
    future = dcp.async_save({"weight": torch.ones(10)}, storage_writer=writer)
    with pytest.raises(dcp.CheckpointException):
        future.result(_DEADLINE)
    wait_until(lambda: events)
    (event,) = events
    assert ("checkpoint.failed", monitel.Severity.ERROR) == (event.name, event.severity)
    assert "torch.distributed.checkpoint.api.CheckpointException" == event.data["exception.type"]
    assert "No space left on device" in str(event.data["exception.message"])


def test_compiler_that_is_being_imported_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its module is there, but not what it will have: another thread imports it for seconds."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", ModuleType("torch._dynamo.utils"))
    with monitel.torch.instrument(sources="compilation"):
        monitel.flush()
    assert [] == caplog.messages
