"""Kinds of jobs in which ranks work in groups: tensor parallel and pipelines."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import torch
from tests.torch.ranks.kinds_of_jobs import Step, kind, loop
from tests.torch.ranks.late_model import BATCH, WIDTH, Model, Pauses, batches
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn import functional as functions
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch import Tensor


LONGER = 0.010  # seconds that the forward of a pipeline's second stage takes more
GROUPED = "pipeline, two unequal stages of two ranks", "pipeline by torch.distributed.pipelining"


def group_of(name: str, rank: int) -> str | None:
    """Return the name of a rank's group in a kind of job; None if all ranks are alike."""
    return f"stage {rank // 2}" if name in GROUPED else None


def _pairs(*pairs: tuple[int, int]) -> Any:
    """Return the group of this rank. All ranks make all groups."""
    rank, found = distributed.get_rank(), None
    for pair in pairs:
        group = distributed.new_group(pair)
        found = group if rank in pair else found
    return found


class _SumOverPair(nn.Module):  # type: ignore[misc]  # Any where torch is not installed
    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group

    def forward(self, inputs: Tensor) -> Tensor:
        return functions.all_reduce(inputs, group=self._group)


class _Longer(nn.Module):  # type: ignore[misc]  # as above
    def forward(self, inputs: Tensor) -> Tensor:
        Event().wait(LONGER)
        return inputs


@kind("tensor parallel in pairs, DDP over all")
def _tensor_parallel(pauses: Pauses) -> Step:
    return loop(pauses, DistributedDataParallel(Model(pauses, _SumOverPair(_pairs((0, 1), (2, 3))))))


@kind("tensor parallel in pairs by DTensor, fully_shard over the pairs")
def _dtensor(pauses: Pauses) -> Step:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = Model(pauses)
    plan = {f"layers.{number}": RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(4)}
    parallelize_module(model, mesh["tensor"], plan)
    return loop(pauses, fully_shard(model, mesh=mesh["data"]))


@kind("the same, without `rank_group`")
@kind(GROUPED[0])
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


@kind(GROUPED[1])
def _library(pauses: Pauses) -> Step:
    rank, micro = distributed.get_rank(), 2
    replicas, pipeline = _pairs((0, 1), (2, 3)), _pairs((0, 2), (1, 3))
    model = Model(pauses, share=1 / micro)
    stage = PipelineStage(model, rank // 2, 2, torch.device("cpu"), group=pipeline)
    schedule = ScheduleGPipe(stage, micro, loss_fn=lambda output, _: output.square().mean())
    optimizer, source = torch.optim.SGD(model.parameters(), lr=0.01), batches(pauses)

    def step() -> None:
        batch = next(source).detach()
        if rank < 2:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        for each in model.parameters():
            distributed.all_reduce(each.grad, group=replicas)
        pauses.spend("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        pauses.spend("other")

    return step
