"""Set-up of process groups as the activity ``init``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import torch.distributed as dist  # noqa: E402  after the check for torch
from torch.distributed import init_process_group  # noqa: E402  imported before the source is there

from monitel.torch import _compat  # noqa: E402
from monitel.torch.sources.process_groups import ProcessGroups  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def source() -> Iterator[ProcessGroups]:
    """Install the source."""
    source = ProcessGroups()
    source.install()
    yield source
    source.remove()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def rendezvous(book: Book, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Provide ``slow://``, which takes 3 s to find the other ranks; it raises an exception that the test appends."""
    errors: list[Exception] = []

    def find(*_args: Any, **_kwargs: Any) -> Iterator[Any]:
        book.wait(3)
        for each in errors:
            raise each
        yield dist.HashStore(), 0, 1

    handlers = dict(dist.rendezvous.__globals__["_rendezvous_handlers"])
    monkeypatch.setitem(dist.rendezvous.__globals__, "_rendezvous_handlers", handlers)
    dist.register_rendezvous_handler("slow", find)
    return errors


@pytest.mark.usefixtures("rendezvous")
def test_set_up_is_init(book: Book) -> None:
    """The set-up does not end startup. The function may have been imported before."""
    book.wait(1)
    init_process_group("gloo", init_method="slow://")
    book.wait(1)
    assert {"startup": 2, "init": 3} == book.seconds
    reading = monitel.wait_counters()
    assert "pytorch.wait_counter.c10d.init_process_group" not in reading  # the counter is torch's, as before


def test_failed_set_up_is_init(book: Book, rendezvous: list[Exception]) -> None:
    """The exception is that of torch, and the activity ends."""
    rendezvous.append(TimeoutError("rank 1 is missing"))
    with pytest.raises(TimeoutError, match="rank 1 is missing"):
        dist.init_process_group("gloo", init_method="slow://")
    book.wait(1)
    assert {"startup": 1, "init": 3} == book.seconds


@pytest.mark.usefixtures("rendezvous")
def test_further_groups_are_init(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may be made in the middle of the training."""
    init_process_group("gloo", init_method="slow://")
    monitel.set_step(1)
    module: Any = dist.distributed_c10d
    create = module._new_process_group_helper

    def slow(*args: Any, **kwargs: Any) -> Any:
        book.wait(1)
        return create(*args, **kwargs)

    monkeypatch.setattr(module, "_new_process_group_helper", slow)
    dist.new_group([0])
    book.wait(10)
    dist.new_subgroups(1)
    assert {"init": 5, "step": 10} == book.seconds


def test_mesh_is_init(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constructor may wait for other ranks without a new group."""

    def slow(**_kwargs: Any) -> str:
        book.wait(2)
        return "mesh"

    monkeypatch.setattr(dist.device_mesh, "DeviceMesh", slow)
    assert "mesh" == dist.init_device_mesh("cpu", (1,))
    assert "mesh" == dist.device_mesh.init_device_mesh("cpu", (1,))
    assert {"init": 4} == book.seconds


@pytest.mark.usefixtures("rendezvous")
def test_set_up_in_another_thread_does_not_count(book: Book, other: Other) -> None:
    """The training thread does something else meanwhile."""
    other.run(lambda: init_process_group("gloo", init_method="slow://"))
    assert {"startup": 3} == book.seconds


def test_collectives_are_not_init(book: Book) -> None:
    """Collectives are timed in the same way by torch. Their time belongs to the current activity."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with monitel.activity("other"):
        book.wait(1)
        dist.barrier()
        dist.all_reduce(torch.ones(1))
    assert {"other": 1} == book.seconds


@pytest.mark.usefixtures("rendezvous")
def test_removed_source_counts_nothing(book: Book, source: ProcessGroups) -> None:
    """The functions are torch's again. If somebody else has wrapped the counter since, it stays."""
    module: Any = _compat.group_timers()
    ours = module._WaitCounter
    module._WaitCounter = wrapped = partial(ours)
    source.remove()
    assert wrapped is module._WaitCounter
    init_process_group("gloo", init_method="slow://")
    module._WaitCounter = ours
    source.remove()
    assert torch.monitor._WaitCounter is module._WaitCounter
    assert not hasattr(dist.init_device_mesh, "__wrapped__")
    assert {"startup": 3} == book.seconds


@pytest.mark.parametrize("name", ["torch.distributed.c10d_logger._WaitCounter", "torch.distributed.init_device_mesh"])
def test_missing_name_is_reported(source: ProcessGroups, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The source is not installed, and torch stays as it is."""
    source.remove()
    monkeypatch.delattr(name)
    with pytest.raises(_compat.Missing, match=name):
        ProcessGroups().install()
    monkeypatch.undo()
    assert torch.monitor._WaitCounter is torch.distributed.c10d_logger._WaitCounter


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # raised within torch
def test_compiled_collectives_do_not_break_the_graph() -> None:
    """The compiler replaces torch's functions, which stay as they are."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def total(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y

    assert 2.0 == total(torch.ones(1)).item()
