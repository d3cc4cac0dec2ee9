"""A job with a plain loop on two ranks of torchrun, which counts its samples batch by batch."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import torch
from tests.integration.nightly.jobs import truth
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import monitel
import monitel.torch

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 500


def main() -> None:
    """Train, with batches of different sizes on the ranks."""
    truth.start()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    monitel.torch.instrument(window_size=1.0)
    truth.CONFIG.update(lr=0.01, model={"width": truth.WIDTH, "bias": None}, seeds=[1, 2])
    monitel.config(truth.CONFIG)
    sizes = random.Random(rank)
    model = DistributedDataParallel(torch.nn.Linear(truth.WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = monitel.counter("training.samples", unit="{sample}")
    for step in range(1, STEPS + 1):
        size = sizes.randint(1, 8)
        loss: Tensor = model(torch.randn(size, truth.WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples.add(size)
        truth.batch_done(size)
        if step % 50 == 0:
            numbers = {"loss": loss.item(), "lr": 0.01}
            monitel.log({"train": numbers}, step=step)
            truth.NUMBERS.append((step, {f"train.{name}": value for name, value in numbers.items()}))
    truth.report(rank=os.environ["RANK"])
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
