"""Train a character model on Python's own source text with PyTorch: alone, or on the ranks that torchrun starts.

There is no telemetry here. train_torch.py is the same training with telemetry, and the part to copy from. Started by
``opentelemetry-instrument``, this script has telemetry without a change.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets them
STDLIB = Path(sysconfig.get_path("stdlib"))
CONTEXT = 64
INTERRUPTED = 128 + signal.SIGINT  # exit status that a shell reports

torch.set_num_threads(1)  # with matrices this small, a second thread mostly waits for the first


class CharModel(nn.Module):  # type: ignore[misc]  # Any where torch is not installed
    """An embedding, a GRU, and the logits of each next character."""

    def __init__(self, *, characters: int = 128, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.recurrent = nn.GRU(32, width, batch_first=True)
        self.output = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits ``(batch, place, character)`` for text ``(batch, place)``."""
        hidden, _ = self.recurrent(self.embedding(text))
        return self.output(hidden)


def loss_of(model: nn.Module, passages: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats per character."""
    text = passages.long()
    return cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def read_passages(parts: Sequence[int]) -> Tensor:
    """Read some twentieths of the standard library's files, in passages of a context and the next character."""
    files = [path for number, path in enumerate(sorted(STDLIB.glob("*.py"))) if number % 20 in parts]
    text = b"".join(path.read_text(encoding="ascii", errors="ignore").encode() for path in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)


def train(model: CharModel, arguments: argparse.Namespace) -> Iterator[Tensor]:
    """Take steps, and yield the loss of each. Every rank has different passages; gradients are averaged."""
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    parallel = DistributedDataParallel(model) if WORLD_SIZE > 1 else model
    data = TensorDataset(read_passages(range(1, 20)))
    sampler = DistributedSampler(data, WORLD_SIZE, RANK, seed=arguments.seed)
    loader = DataLoader(data, arguments.batch_size, sampler=sampler, num_workers=arguments.workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def batches() -> Iterator[list[Tensor]]:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    for step, (batch,) in enumerate(itertools.islice(batches(), arguments.steps), start=1):
        loss = loss_of(parallel, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            report(f"step {step:5,}  loss {loss.item():.3f}")
        yield loss
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


def evaluate(model: CharModel) -> float:
    """Return the loss on every tenth passage of the validation files."""
    with torch.no_grad():
        held_out = float(loss_of(model, read_passages([0])[::10]))
    report(f"held-out loss {held_out:.3f}")
    return held_out


def report(line: str) -> None:
    """Print a line, on rank 0 only."""
    if RANK == 0:
        print(line, flush=True)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small model on Python's source, alone or by torchrun.")
    parser.add_argument("--steps", type=at_least(1), default=500, help="how long to train (%(default)s)")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="passages a step and rank (%(default)s)")
    parser.add_argument("--workers", type=at_least(0), default=1, help="processes that load data (%(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="same seed, same losses (%(default)s)")
    return parser.parse_args(argv)


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type."""

    def integer(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        return value

    return integer


def main(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate."""
    arguments = parse_arguments(argv)
    torch.manual_seed(arguments.seed)
    model = CharModel()
    for _loss in train(model, arguments):
        pass
    evaluate(model)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
