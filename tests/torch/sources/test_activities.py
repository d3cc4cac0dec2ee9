"""Activities of the training thread: waiting for data, and setting up process groups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.producers import run_together
from tests.torch.known_work import activity, ledger
from torch.distributed import init_process_group  # imported before instrument()
from torch.utils.data import DataLoader, Dataset, IterableDataset

import monitel
import monitel.torch

pytestmark = pytest.mark.usefixtures("instrumented")


class Items(Dataset[str]):  # type: ignore[misc]
    """Three items, each of which is the activity of the process; the fourth fails."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        if index > 2:
            raise ValueError(f"no such item in {activity()}")
        return activity()


class Stream(IterableDataset[str]):  # type: ignore[misc]
    """Activities of the process when it is opened, and at its only item."""

    def __iter__(self) -> Iterator[str]:
        opened = activity()
        return (opened + " " + activity() for _ in range(1))


def test_waiting_for_a_batch_is_data() -> None:
    """Before the first step, when a loader is opened, by ``batches()``, and up to an exception; the loop is a step."""
    found = []
    for (item,) in DataLoader(Items()):
        found += [item, activity()]
    assert ["data", "startup"] * 3 == found
    monitel.set_step(1)
    assert [("data", "step")] * 3 == [(item, activity()) for (item,) in DataLoader(Items())]
    assert [["data data"]] == list(DataLoader(Stream()))
    made = (activity() for _ in range(2))
    assert [("data", "step")] * 2 == [(item, activity()) for item in monitel.torch.batches(made)]
    with pytest.raises(ValueError, match="no such item in data"):
        next(iter(DataLoader(Items(), sampler=[3])))
    assert "step" == activity()


def test_evaluation_and_checkpoints_include_their_data() -> None:
    """In any other activity the innermost one counts: a wait for a batch there is ``data``."""
    monitel.set_step(1)
    for name, found in (("evaluation", "evaluation"), ("checkpoint.save", "checkpoint.save"), ("rollout", "data")):
        with monitel.activity(name):
            assert [[found]] * 3 == list(DataLoader(Items()))


def test_other_threads_do_not_count() -> None:
    """A prefetching thread loads, or sets up a group, while the training thread computes."""
    monitel.set_step(1)
    found: list[Any] = []

    def other() -> None:
        found.extend(DataLoader(Items()))
        init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    run_together(other)
    dist.destroy_process_group()
    assert [["step"]] * 3 == found


class Files(Dataset[int]):  # type: ignore[misc]
    """Reads a file with torch.load, and returns the number of events that this process has seen."""

    def __init__(self, path: Path, events: list[monitel.Event]) -> None:
        self._path = path
        self._events = events

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _index: int) -> int:
        assert 5 == torch.load(self._path)
        return len(self._events)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_loads_files_is_data(tmp_path: Path, workers: int, events: list[monitel.Event]) -> None:
    """In the process itself and in a forked worker: these files are not checkpoints, and have no events."""
    torch.save(5, tmp_path / "item.pt")
    events.clear()
    context = "fork" if workers else None
    loader = DataLoader(Files(tmp_path / "item.pt", events), num_workers=workers, multiprocessing_context=context)
    assert [0, 0] == [int(each) for each in loader]
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
