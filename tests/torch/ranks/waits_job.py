"""A job of two ranks that waits in every way. Rank 0 writes ``FOLDER/waits.json``: sync and the truth of each wait."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from tests.support.producers import run_together
from torch import Tensor, distributed
from torch.distributed import checkpoint

import monitel
import monitel.testing
import monitel.torch


class _Delegating(distributed.Work):  # type: ignore[misc]  # Any where torch is not installed
    """A Work of another library, with its wait()."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def wait(self, *arguments: Any) -> bool:
        return bool(self._inner.wait(*arguments))


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
        "Work.wait twice": _waited_twice,
        "subclass of Work": lambda _: _Delegating(distributed.all_reduce(two.clone(), async_op=True)).wait(),
        "Future.wait": lambda _: distributed.all_reduce(two.clone(), async_op=True).get_future().wait(),
        "barrier": lambda _: distributed.barrier(),
        "monitored_barrier": lambda _: distributed.monitored_barrier(),
        "all_gather_object": lambda rank: distributed.all_gather_object([None, None], {"rank": rank}),
        "recv": lambda rank: (distributed.send if rank else distributed.recv)(two.clone(), 1 - rank),
        "_broadcast_coalesced": lambda _: distributed._broadcast_coalesced(group, [two.clone()], 1000, 1),
        "Store.wait": lambda rank: _stored(rank, "wait"),
        "Store.get": lambda rank: _stored(rank, "get"),
        "wait_tensor": lambda _: functional.wait_tensor(functional.all_reduce(two, "sum", group)),
        "functional collective": lambda _: _added(two),
        "compiled collective": lambda _: _compiled(two),
        "checkpoint.save": lambda _: checkpoint.save({"two": two}, checkpoint_id=folder / "checkpoint"),
    }


LATE = 0.150
_never = Event()


def sync(rest: Callable[[], object]) -> float:
    """Return how long ``sync`` was in the cycle in which a function was called."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=3600.0):
        for after in (rest, bool):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            after()
    windows = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
    found = {window.attributes["training.stage"]: window for window in windows}
    assert {1} == {each.count for each in found.values()}
    return float(found["sync"].mean)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    found: dict[str, tuple[float, float]] = {}

    def case(name: str, wait: Callable[[], Any]) -> None:
        together = truth = 0.0

        def timed() -> None:
            nonlocal together, truth
            begin = time.perf_counter()
            distributed.barrier()
            together = time.perf_counter() - begin
            if rank == 1:
                _never.wait(LATE)
            begin = time.perf_counter()
            wait()
            truth = time.perf_counter() - begin

        found[name] = sync(timed) - together, truth

    for name, wait in waits(folder).items():
        case(name, partial(wait, rank))
    case("in another thread", lambda: run_together(distributed.barrier))
    case("nothing", lambda: _never.wait(LATE))
    if rank == 0:
        Path(folder, "waits.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
