"""Jobs of four ranks, one after the other; in each of them one rank is late in one stage.

The argument is a folder. Each rank writes ``FOLDER/<rank>.json``: for each kind of job its group, whether its steps had
the outcome of those of a job that is not instrumented, whether the rank was seen while it waited for others, and the
typical duration of each stage.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, median
from threading import Event
from typing import Any

import torch
from tests.support.producers import repeating
from tests.torch.known_work import Takes, windows_of
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import monitel
import monitel.testing
import monitel.torch
from monitel.training.activities import Stage, stage_now

WIDTH, BATCH = 16, 4
WARM_UP, STEPS = 3, 6
LATE = 0.120  # seconds
#: The seconds of each stage in a step that is not late.
SECONDS = {"data": 0.004, "forward": 0.006, "backward": 0.008, "optimizer": 0.003, "other": 0.002}
LONGER = 0.010  # seconds that the forward of a pipeline's second stage takes more
_never = Event()


class Pauses:
    """The known duration of each stage on this rank, one of which may be longer."""

    def __init__(self, scale: float, late: str = "") -> None:
        self._scale, self._late = scale, late

    def spend(self, stage: str) -> None:
        _never.wait(self._scale * (SECONDS[stage] + (LATE if stage == self._late else 0)))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # Any where torch is not installed
def spend(tensor: Tensor, pauses: Pauses) -> Tensor:
    return Takes.apply(tensor, pauses.spend, "forward", "backward")


class Model(nn.Module):  # type: ignore[misc]  # as above
    """Four layers, one more after the first, and in their middle the time of forward and backward."""

    def __init__(self, pauses: Pauses, norm: Any = None, *, reentrant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = norm
        self._pauses, self._reentrant = pauses, reentrant

    def forward(self, tensor: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number == 2:
                tensor = spend(tensor, self._pauses)
            tensor = checkpoint(layer, tensor, use_reentrant=True) if self._reentrant else layer(tensor)
            if number == 0 and self.norm is not None:
                tensor = self.norm(tensor)
        return tensor.tanh()


def batches(pauses: Pauses) -> Iterator[Tensor]:
    """Return an iterator of a DataLoader that spends the time of ``data``."""

    def collate(samples: list[int]) -> Tensor:
        pauses.spend("data")
        rank = distributed.get_rank()
        return torch.stack([torch.full((WIDTH,), 0.01 * (each % 7 + rank)) for each in samples]).requires_grad_()

    return iter(DataLoader(range(10**9), BATCH, collate_fn=collate))


Step = Callable[[], float]  # returns what depends on all gradients before

#: By name: a function that builds a job and returns its step, and the stage in which a rank is late.
KINDS: dict[str, tuple[Callable[[Pauses], Step], str]] = {}


def kind(name: str, late: str) -> Callable[[Callable[[Pauses], Step]], None]:
    def add(build: Callable[[Pauses], Step]) -> None:
        KINDS[name] = build, late

    return add


def updated(pauses: Pauses, optimizer: Any, outcome: Tensor) -> float:
    """Make the part of a step that follows backward."""
    pauses.spend("optimizer")
    optimizer.step()
    optimizer.zero_grad()
    pauses.spend("other")
    return float(outcome.item())


def loop(pauses: Pauses, model: Any, micro: int = 1, no_sync: Callable[[], Any] = nullcontext) -> Step:
    """Return a usual training step, with micro-batches, and a context for all backwards but the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = batches(pauses)

    def step() -> float:
        for each in range(micro):
            with no_sync() if each < micro - 1 else nullcontext():
                loss = model(next(source)).square().mean()
                loss.backward()
        return updated(pauses, optimizer, loss)

    return step


@kind("DDP, reentrant checkpoints, buffers (BatchNorm)", "backward")
def _checkpointed(pauses: Pauses) -> Step:
    model = Model(pauses, nn.BatchNorm1d(WIDTH), reentrant=True)
    return loop(pauses, DistributedDataParallel(model, static_graph=True))


@kind("DDP, accumulation with no_sync", "other")
def _accumulation(pauses: Pauses) -> Step:
    model = DistributedDataParallel(Model(pauses))
    return loop(pauses, model, 3, model.no_sync)


@kind("DDP, compiled", "optimizer")
def _compiled(pauses: Pauses) -> Step:
    return loop(pauses, torch.compile(DistributedDataParallel(Model(pauses)), backend="aot_eager"))


@kind("tensor parallel in pairs by DTensor, fully_shard over the pairs", "forward")
def _dtensor(pauses: Pauses) -> Step:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = Model(pauses)
    plan = {f"layers.{number}": RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(4)}
    parallelize_module(model, mesh["tensor"], plan)
    return loop(pauses, fully_shard(model, mesh=mesh["data"]))


def longer(inputs: Tensor) -> Tensor:
    _never.wait(LONGER)
    return inputs


PIPELINE = "pipeline, two unequal stages of two ranks"


@kind(PIPELINE, "data")
def _pipeline(pauses: Pauses) -> Step:
    rank = distributed.get_rank()
    replicas = [distributed.new_group(pair) for pair in ((0, 1), (2, 3))][rank // 2]
    model = DistributedDataParallel(Model(pauses, None if rank < 2 else longer), process_group=replicas)
    optimizer, source = torch.optim.SGD(model.parameters(), lr=0.01), batches(pauses)

    def step() -> float:
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
            output = model(activation)
            output.square().mean().backward()
            distributed.send(activation.grad, rank - 2)
        return updated(pauses, optimizer, output.sum())

    return step


def victim(name: str) -> int:
    """Return the rank that is late in a kind of job: each one in turn."""
    return [*KINDS].index(name) % 4


def group_of(name: str) -> str | None:
    """Return the name of this rank's group in a kind of job; None if all ranks are alike."""
    return f"stage {distributed.get_rank() // 2}" if name == PIPELINE else None


def run(name: str, pauses: Pauses, steps: int) -> list[float]:
    """Return the outcome of each step of a new job."""
    torch.manual_seed(2)
    step = KINDS[name][0](pauses)
    return [step() for _ in range(steps)]


def durations(events: list[monitel.Event]) -> dict[str, float]:
    """Return the typical duration of each stage in the last steps."""
    stages: dict[str, list[float]] = {}
    for each in windows_of(events, "training.stage.duration"):
        assert 1 == each.count, "a window for each cycle"
        stages.setdefault(str(each.attributes["training.stage"]), []).append(each.mean)
    # of pairs of steps, because ranks may wait for each other in every second step only
    return {
        stage: median(map(fmean, zip(values[-STEPS::2], values[1 - STEPS :: 2], strict=True)))
        for stage, values in stages.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name, (_, late) in KINDS.items():
        expected = run(name, Pauses(0), 3)
        group = group_of(name)
        pauses = Pauses(1, late if distributed.get_rank() == victim(name) else "")
        seen: list[Stage | None] = []
        with (
            monitel.testing.capture_events() as events,
            monitel.torch.instrument(window_size=0.001, rank_group=group),
            repeating(lambda: seen.append(stage_now()), pause=LATE / 20),  # noqa: B023  this one
        ):
            same = expected == run(name, pauses, WARM_UP + STEPS)[:3]
        waits = sum(each is not None and each.waits for each in seen) > STEPS
        found[name] = {"group": group, "same": same, "waits": waits, "stages": durations(events)}
        torch._dynamo.reset()
    Path(sys.argv[1], f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
