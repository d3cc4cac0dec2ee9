"""Kinds of jobs of four ranks. Each function builds one, and returns the function that takes a step."""

from collections.abc import Callable
from contextlib import nullcontext
from threading import Event
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from tests.torch.ranks.late_model import BATCH, WIDTH, Model, Pauses, batches
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[], None]
Kind = Callable[[Pauses], Step]

KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    def add(build: Kind) -> Kind:
        KINDS[name] = build
        return build

    return add


def loop(
    pauses: Pauses,
    model: Any,
    *,
    reduce: Callable[[], None] = lambda: None,
    micro: int = 1,
    no_sync: Callable[[], Any] = nullcontext,
) -> Step:
    """Return a usual training step.

    Args:
        pauses: Spends the time of each place.
        model: The model.
        reduce: Called after backward.
        micro: Number of micro-batches.
        no_sync: The context of all backwards but the last one.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = batches(pauses, 1 / micro)

    def step() -> None:
        for each in range(micro):
            with no_sync() if each < micro - 1 else nullcontext():
                model(next(source)).square().mean().backward()
        reduce()
        pauses.spend("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        pauses.spend("other")

    return step


@kind("DDP, checkpointed layers, reentrant")
def _checkpointed(pauses: Pauses) -> Step:
    return loop(pauses, DistributedDataParallel(Model(pauses, reentrant=True), static_graph=True))


@kind("DDP with buffers (BatchNorm)")
def _buffers(pauses: Pauses) -> Step:
    return loop(pauses, DistributedDataParallel(Model(pauses, nn.BatchNorm1d(WIDTH))))


@kind("DDP, accumulation with no_sync")
def _accumulation(pauses: Pauses) -> Step:
    model = DistributedDataParallel(Model(pauses, share=1 / 3))
    return loop(pauses, model, micro=3, no_sync=model.no_sync)


@kind("DDP, compiled")
def _compiled(pauses: Pauses) -> Step:
    return loop(pauses, torch.compile(DistributedDataParallel(Model(pauses)), backend="aot_eager"))


@kind("FSDP2 (fully_shard)")
def _fsdp2(pauses: Pauses) -> Step:
    model = Model(pauses)
    for each in model.layers:
        fully_shard(each)
    return loop(pauses, fully_shard(model))


@kind("all-reduce in a compiled graph")
def _compiled_collectives(pauses: Pauses) -> Step:
    model = Model(pauses)

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]  # as above
    def average(gradient: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(gradient, "sum", distributed.group.WORLD) / 4

    def reduce() -> None:
        for each in model.parameters():
            each.grad = average(each.grad)

    return loop(pauses, model, reduce=reduce)


@kind("independent trainings")
def _independent(pauses: Pauses) -> Step:
    return loop(pauses, Model(pauses))


LONGER = 0.010  # seconds that the forward of a pipeline's second stage takes more
GROUPED = "pipeline, two unequal stages of two ranks"


def group_of(name: str, rank: int) -> str | None:
    """Return the name of a rank's group in a kind of job; None if all ranks are alike."""
    return f"stage {rank // 2}" if name == GROUPED else None


def _pairs(*pairs: tuple[int, int]) -> Any:
    """Return the group of this rank. All ranks make all groups."""
    rank, found = distributed.get_rank(), None
    for pair in pairs:
        group = distributed.new_group(pair)
        found = group if rank in pair else found
    return found


class _Longer(nn.Module):  # type: ignore[misc]  # as above
    def forward(self, inputs: Tensor) -> Tensor:
        Event().wait(LONGER)
        return inputs


@kind("tensor parallel in pairs by DTensor, fully_shard over the pairs")
def _dtensor(pauses: Pauses) -> Step:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = Model(pauses)
    plan = {f"layers.{number}": RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(4)}
    parallelize_module(model, mesh["tensor"], plan)
    return loop(pauses, fully_shard(model, mesh=mesh["data"]))


@kind(GROUPED)
def _pipeline(pauses: Pauses) -> Step:
    rank = distributed.get_rank()
    replicas = _pairs((0, 1), (2, 3))
    model = DistributedDataParallel(Model(pauses, None if rank < 2 else _Longer()), process_group=replicas)
    optimizer, source = torch.optim.SGD(model.parameters(), lr=0.01), batches(pauses)

    def step() -> None:
        batch = next(source)
        if rank < 2:
            output = model(batch)
            distributed.send(output.detach(), rank + 2)
            gradient = torch.empty_like(output)
            distributed.recv(gradient, rank + 2)
            output.backward(gradient)
        else:
            activation = torch.empty(BATCH, WIDTH)
            distributed.recv(activation, rank - 2)
            activation.requires_grad_()
            model(activation).square().mean().backward()
            distributed.send(activation.grad, rank - 2)
        pauses.spend("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        pauses.spend("other")

    return step
