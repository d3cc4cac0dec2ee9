"""Cost of ``monitel.torch.instrument()`` per training step and per wait for other ranks, beside nv-one-logger."""

from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from time import thread_time
from typing import Any

import torch
from peers import one_logger_iteration
from race import Contender, race, timed
from row import Row
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import monitel.torch

_CALLS = 2000
_PEER = "nv-one-logger, an iteration"
_WAIT_NS = 1000


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Does nothing."""

    def step(self, closure: Any = None) -> None: ...


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return count()


def both(code: str, names: dict[str, Any]) -> dict[str, Contender]:
    """Return contenders that run some code with instrumentation, and without."""

    def prepared(*, instrumented: bool) -> Callable[[], dict[str, Any]]:
        def prepare() -> dict[str, Any]:
            running = monitel.torch.instrument()
            if not instrumented:
                running.uninstrument()
            return names

        return prepare

    kinds = {"monitel": True, "bare": False}
    return {what: timed(code, prepared(instrumented=kind), _CALLS, clock=thread_time) for what, kind in kinds.items()}


def above_bare(costs: dict[str, list[float]]) -> list[float]:
    return [mine - bare for mine, bare in zip(costs["monitel"], costs["bare"], strict=True)]


def steps() -> None:
    """Measure a batch of a DataLoader, a backward, and one step of an optimizer that does nothing."""
    weight = torch.nn.Parameter(torch.ones(1))
    names = {
        "batches": iter(torch.utils.data.DataLoader(Numbers(), batch_size=None)),
        "backward": weight.sum().backward,
        "step": Optimizer([weight], {}).step,
    }
    # Long rounds: a class whose method was just replaced is slow for a while.
    contenders = both(f"for _ in range({_CALLS}): next(batches); backward(retain_graph=True); step()", names)
    if (iteration := one_logger_iteration()) is not None:
        code = f"for _ in range({_CALLS}): iteration()"
        contenders[_PEER] = timed(code, lambda: {"iteration": iteration}, _CALLS, clock=thread_time)
    costs = race(contenders)
    row = Row("torch: a step with its stages and batch", median(above_bare(costs)), peer=_PEER)
    if _PEER in costs:
        row.peer_value = median(costs[_PEER])
        row.ratio = median(mine / theirs for mine, theirs in zip(above_bare(costs), costs[_PEER], strict=True))
    row.put()


def waits() -> None:
    """Measure a wait for work that has ended: another rank's delays would hide what the hooks cost."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # only such jobs have waits
    work = distributed.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    # Only a thread that has had a backward is one whose waits count.
    loss = torch.nn.Parameter(torch.ones(1)).sum()
    code = f"loss.backward(retain_graph=True)\nfor _ in range({_CALLS}): Work.wait(work)"
    costs = race(both(code, {"loss": loss, "work": work, "Work": distributed.Work}))
    Row("torch: a wait for other ranks", median(above_bare(costs)), most=_WAIT_NS).put()
    distributed.destroy_process_group()


if __name__ == "__main__":
    steps()
    waits()
