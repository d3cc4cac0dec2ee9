"""All operations through which a loop waits for another rank: rank 1 comes late, and rank 0 waits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor, distributed
from torch.distributed import checkpoint


class _Delegating(distributed.Work):  # type: ignore[misc]  # Any where torch is not installed
    """A Work of another library, with its wait()."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def wait(self, *arguments: Any) -> bool:
        return bool(self._inner.wait(*arguments))


def _both_ways(rank: int) -> None:
    sent, received = torch.ones(2), torch.zeros(2)
    operations = [
        distributed.P2POp(distributed.isend, sent, 1 - rank),
        distributed.P2POp(distributed.irecv, received, 1 - rank),
    ]
    for each in distributed.batch_isend_irecv(operations):
        each.wait()
    assert [1, 1] == received.tolist()


def _waited_twice(_: int) -> None:
    work = distributed.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    work.wait()


def _stored(rank: int, method: str) -> None:
    store = distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.set(method, "ready")
    elif method == "get":
        assert b"ready" == store.get(method)
    else:
        store.wait([method])


def _coalesced(_: int) -> None:
    with distributed._coalescing_manager():
        for _ in range(3):
            distributed.all_reduce(torch.ones(2))


@torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]  # as above
def _compiled(tensor: Tensor) -> Tensor:
    return functional.all_reduce(tensor * 2, "sum", distributed.group.WORLD) + 1


def _added(tensor: Tensor) -> None:
    assert [2, 2] == (functional.all_reduce(tensor, "sum", distributed.group.WORLD) + 0).tolist()


def waits(folder: Path) -> dict[str, Callable[[int], object]]:
    """Return the operations by their names. Each is called with the rank."""
    two = torch.ones(2)
    group = distributed.group.WORLD
    assert [5, 5] == _compiled(two).tolist()
    return {
        "all_reduce": lambda _: distributed.all_reduce(two.clone()),
        "Work.wait": lambda _: distributed.all_reduce(two.clone(), async_op=True).wait(),
        "Work.wait twice": _waited_twice,
        "subclass of Work": lambda _: _Delegating(distributed.all_reduce(two.clone(), async_op=True)).wait(),
        "Future.wait": lambda _: distributed.all_reduce(two.clone(), async_op=True).get_future().wait(),
        "barrier": lambda _: distributed.barrier(),
        "monitored_barrier": lambda _: distributed.monitored_barrier(),
        "all_gather_object": lambda rank: distributed.all_gather_object([None, None], {"rank": rank}),
        "broadcast_object_list": lambda rank: distributed.broadcast_object_list([rank], src=1),
        "recv": lambda rank: (distributed.send if rank else distributed.recv)(two.clone(), 1 - rank),
        "batch_isend_irecv": _both_ways,
        "coalescing manager": _coalesced,
        "_broadcast_coalesced": lambda _: distributed._broadcast_coalesced(group, [two.clone()], 1000, 1),
        "Store.wait": lambda rank: _stored(rank, "wait"),
        "Store.get": lambda rank: _stored(rank, "get"),
        "wait_tensor": lambda _: functional.wait_tensor(functional.all_reduce(two, "sum", group)),
        "functional collective": lambda _: _added(two),
        "compiled collective": lambda _: _compiled(two),
        "checkpoint.save": lambda _: checkpoint.save({"two": two}, checkpoint_id=folder / "checkpoint"),
    }
