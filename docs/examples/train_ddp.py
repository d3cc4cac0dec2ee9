"""Train a small model on several ranks that wait for each other, and make a rank late on purpose.

    make stack-up
    export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
    torchrun --nproc-per-node 4 docs/examples/train_ddp.py --late data:2:30ms

Rank 2 then needs 30 ms more for each batch. All four ranks have the same step time, because three of them wait for the
fourth. The query ``training:suspect:seconds`` in Prometheus names rank 2, the stage ``data`` and 30 ms.

A delay is STAGE:RANK:DELAY, and ``--late`` may be given several times. With ``/10`` after the delay it occurs in one
step of ten. A step takes about 100 ms: most of it is pauses instead of work, so that many ranks fit on one machine.
Ctrl-C ends the run early, with everything written.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import monitel
import monitel.torch
import monitel_otlp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets them
WINDOW = 5.0  # seconds, about fifty steps
PAUSES = {"data": 0.010, "forward": 0.025, "backward": 0.045, "optimizer": 0.008, "other": 0.004}  # seconds a step
FEATURES, SAMPLES, BATCH_SIZE = 64, 4096, 16
LONGEST = 60.0  # seconds of one delay
INTERRUPTED = 128 + signal.SIGINT  # exit status that a shell reports

torch.set_num_threads(1)  # with matrices this small, a second thread mostly waits for the first


@dataclass(frozen=True)
class Late:
    """A delay of one rank in one stage, in every step or in one step of ``every``."""

    stage: str
    rank: int
    seconds: float
    every: int = 1

    def __str__(self) -> str:
        steps = "every step" if self.every == 1 else f"one step of {self.every}"
        return f"rank {self.rank} is late in {self.stage} by {1000 * self.seconds:g} ms in {steps}"


class Work:
    """The work of a rank: pauses of a known length, and the delays of this rank."""

    def __init__(self, late: Sequence[Late]) -> None:
        self.step = 0
        self._late = [each for each in late if each.rank == RANK]
        self._pause = Event().wait  # never set

    def spend(self, stage: str) -> None:
        """Spend the time of a stage in the current step."""
        late = (each.seconds for each in self._late if each.stage == stage and self.step % each.every == 0)
        self._pause(PAUSES[stage] + sum(late))


class Layer(torch.autograd.Function):  # type: ignore[misc]  # Any where torch is not installed
    """Pass a tensor on unchanged, and spend time in forward and in backward."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, tensor: Tensor, work: Work) -> Tensor:
        """Spend the time of forward."""
        context.work = work
        work.spend("forward")
        return tensor.clone()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        """Spend the time of backward."""
        context.work.spend("backward")
        return gradient, None


class Model(nn.Module):  # type: ignore[misc]  # as above
    """Two small layers, with most of the work between them."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
        self._work = work

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a prediction for each sample."""
        return self.second(Layer.apply(self.first(inputs).relu(), self._work)).squeeze(1)


def batches(work: Work) -> Iterator[list[Tensor]]:
    """Yield the batches of this rank, epoch by epoch, without an end."""
    inputs = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1).tanh())
    sampler = DistributedSampler(data, WORLD_SIZE, RANK)

    def collate(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        work.spend("data")
        return [torch.stack(column) for column in zip(*samples, strict=True)]

    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, drop_last=True, collate_fn=collate)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def train(arguments: argparse.Namespace) -> float:
    """Take the steps, and return the mean duration of one in seconds."""
    torch.manual_seed(0)
    work = Work(arguments.late)
    model = DistributedDataParallel(Model(work))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train_loss = monitel.stat("train.loss", window_size=WINDOW)
    begin = time.monotonic()
    source = batches(work)
    for work.step in range(1, arguments.steps + 1):
        inputs, targets = next(source)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        work.spend("optimizer")
        optimizer.step()
        train_loss.add(loss)
        work.spend("other")
        if work.step % 100 == 0:
            report(f"step {work.step:6,}  loss {loss.item():.4f}")
    return (time.monotonic() - begin) / work.step


def main(argv: Sequence[str] | None = None) -> None:
    """Set up the telemetry, train, and print the delays and the query that finds them."""
    arguments = parse_arguments(argv)
    monitel_otlp.configure(service_name="train-ddp", sigterm=True)  # torchrun ends ranks by SIGTERM when one fails
    monitel.torch.instrument(window_size=WINDOW)
    dist.init_process_group("gloo")
    report(f"{arguments.steps:,} steps on {WORLD_SIZE} rank{'s' * (WORLD_SIZE > 1)}; Ctrl-C ends the run early")
    if WORLD_SIZE == 1:
        report("one rank has nothing to be compared with: start at least two")
    seconds = train(arguments)
    dist.destroy_process_group()
    report(f"a step took {1000 * seconds:.0f} ms on every rank")
    for late in arguments.late:
        report(f"injected: {late}")
    report("the suspects in Prometheus, until three minutes after the run:")
    report('    sort_desc(training:suspect:seconds{service_name="train-ddp"})')


def report(line: str) -> None:
    """Print a line, on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train on several ranks, of which some are late. Start it by torchrun."
    )
    parser.add_argument(
        "--steps", type=steps, default=2000, help="number of steps, ten in about a second (%(default)s)"
    )
    parser.add_argument(
        "--late",
        type=delay,
        action="append",
        default=[],
        metavar="STAGE:RANK:DELAY[/N]",
        help=f"make a rank late in a stage ({', '.join(PAUSES)}), in every step or in one of N; may be repeated",
    )
    arguments = parser.parse_args(argv)
    if "RANK" not in os.environ:
        parser.error("start it by torchrun: torchrun --nproc-per-node 4 docs/examples/train_ddp.py")
    for late in arguments.late:
        if late.rank >= WORLD_SIZE:
            parser.error(f"argument --late: there is no rank {late.rank}: the ranks are 0 to {WORLD_SIZE - 1}")
    return arguments


def steps(text: str) -> int:
    """Return a number of steps, at least 1."""
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number of steps, at least 1, got {text!r}")
    return int(text)


def delay(text: str) -> Late:
    """Return the delay that a text like ``data:2:30ms`` or ``forward:0:0.2s/10`` describes."""
    found = re.fullmatch(r"(\w+):([0-9]{1,9}):([0-9]+(?:\.[0-9]+)?)(ms|s)(?:/([1-9][0-9]{0,8}))?", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected STAGE:RANK:DELAY, e.g. data:2:30ms or data:2:30ms/10, got {text!r}")
    stage, rank, number, unit, every = found.groups()
    if stage not in PAUSES:
        raise argparse.ArgumentTypeError(f"expected a stage of {', '.join(PAUSES)}, got {stage!r}")
    seconds = float(number) / (1000 if unit == "ms" else 1)
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"expected a delay above 0 and at most {LONGEST:g} s, got {number}{unit}")
    return Late(stage, int(rank), seconds, int(every or 1))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
