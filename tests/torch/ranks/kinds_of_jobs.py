"""Kinds of jobs of four ranks. Each function builds one, and returns the function that takes a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from tests.torch.ranks.late_model import BATCH, WIDTH, Model, Pauses, batches
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn import functional as functions
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
    rest: Callable[[int], None] = lambda _: None,
    optimizer: Any = None,
    micro: int = 1,
    no_sync: Callable[[], Any] = nullcontext,
) -> Step:
    """Return a usual training step.

    Args:
        pauses: Spends the time of each place.
        model: The model.
        reduce: Called after backward.
        rest: Called between two steps, with their number.
        optimizer: The optimizer.
        micro: Number of micro-batches.
        no_sync: The context of all backwards but the last one.
    """
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    source = batches(pauses, 1 / micro)
    number = 0

    def step() -> None:
        nonlocal number
        for each in range(micro):
            with no_sync() if each < micro - 1 else nullcontext():
                model(next(source)).square().mean().backward()
        reduce()
        pauses.spend("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        pauses.spend("other")
        rest(number)

    return step


def _ddp(name: str, model: dict[str, Any] | None = None, **options: Any) -> None:
    kind(name)(lambda pauses: loop(pauses, DistributedDataParallel(Model(pauses, **(model or {})), **options)))


_ddp("DDP")
_ddp("DDP, static graph", static_graph=True)
_ddp("DDP, unused parameters", {"unused": True}, find_unused_parameters=True)
_ddp("DDP, gradients as views of buckets", gradient_as_bucket_view=True)
_ddp("DDP, checkpointed layers, reentrant", {"reentrant": True}, static_graph=True)
_ddp("DDP, checkpointed layers", {"reentrant": False})


@kind("DDP with buffers (BatchNorm)")
def _buffers(pauses: Pauses) -> Step:
    return loop(pauses, DistributedDataParallel(Model(pauses, nn.BatchNorm1d(WIDTH))))


class _NormOverRanks(nn.Module):  # type: ignore[misc]  # Any where torch is not installed
    """The collectives of SyncBatchNorm, which refuses the CPU: inside forward and inside backward."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - functions.all_reduce(inputs.mean(0)) / distributed.get_world_size()


@kind("DDP, normalized over all ranks in forward")
def _normalized(pauses: Pauses) -> Step:
    return loop(pauses, DistributedDataParallel(Model(pauses, _NormOverRanks())))


@kind("DDP with PowerSGD")
def _power(pauses: Pauses) -> Step:
    model = DistributedDataParallel(Model(pauses))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return loop(pauses, model)


@kind("DDP, accumulation with no_sync")
def _accumulation(pauses: Pauses) -> Step:
    model = DistributedDataParallel(Model(pauses, share=1 / 3))
    return loop(pauses, model, micro=3, no_sync=model.no_sync)


@kind("DDP, compiled")
def _compiled(pauses: Pauses) -> Step:
    return loop(pauses, torch.compile(DistributedDataParallel(Model(pauses)), backend="aot_eager"))


@kind("DDP, ZeroRedundancyOptimizer")
def _zero(pauses: Pauses) -> Step:
    model = DistributedDataParallel(Model(pauses))
    optimizer = import_module("torch.distributed.optim").ZeroRedundancyOptimizer  # the import warns
    return loop(pauses, model, optimizer=optimizer(model.parameters(), torch.optim.SGD, lr=0.01))


@kind("FSDP1")
def _fsdp1(pauses: Pauses) -> Step:
    return loop(pauses, FullyShardedDataParallel(Model(pauses), device_id=torch.device("cpu"), use_orig_params=True))


@kind("FSDP2 (fully_shard)")
def _fsdp2(pauses: Pauses) -> Step:
    model = Model(pauses)
    for each in model.layers:
        fully_shard(each)
    return loop(pauses, fully_shard(model))


@kind("all-reduce of the gradients after backward")
def _manual(pauses: Pauses) -> Step:
    model = Model(pauses)

    def reduce() -> None:
        for each in model.parameters():
            distributed.all_reduce(each.grad)

    return loop(pauses, model, reduce=reduce)


@kind("the same, by futures")
def _futures(pauses: Pauses) -> Step:
    model = Model(pauses)

    def reduce() -> None:
        for each in [distributed.all_reduce(each.grad, async_op=True) for each in model.parameters()]:
            each.get_future().wait()

    return loop(pauses, model, reduce=reduce)


@kind("the same, by functional collectives")
def _functional(pauses: Pauses) -> Step:
    model = Model(pauses)

    def reduce() -> None:
        for each in model.parameters():
            each.grad = functional.all_reduce(each.grad, "sum", distributed.group.WORLD) / 4

    return loop(pauses, model, reduce=reduce)


@kind("the same, in a compiled graph")
def _compiled_collectives(pauses: Pauses) -> Step:
    model = Model(pauses)

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]  # as above
    def average(gradient: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(gradient, "sum", distributed.group.WORLD) / 4

    def reduce() -> None:
        for each in model.parameters():
            each.grad = average(each.grad)

    return loop(pauses, model, reduce=reduce)


@kind("averaged weights every second step (local SGD)")
def _local(pauses: Pauses) -> Step:
    model = Model(pauses)

    def rest(number: int) -> None:
        if number % 2 == 0:
            with torch.no_grad():
                for each in model.parameters():
                    distributed.all_reduce(each)
                    each.div_(distributed.get_world_size())

    return loop(pauses, model, rest=rest)


@kind("independent trainings")
def _independent(pauses: Pauses) -> Step:
    return loop(pauses, Model(pauses))


@kind("autograd.grad instead of backward")
def _grad(pauses: Pauses) -> Step:
    model = Model(pauses)
    source, parameters = batches(pauses), list(model.parameters())

    def step() -> None:
        loss = model(next(source)).square().mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            distributed.all_reduce(gradient)
            parameter.data -= 0.01 * gradient / BATCH
        pauses.spend("optimizer")
        pauses.spend("other")

    return step
