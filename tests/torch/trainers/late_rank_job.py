"""A training by Lightning whose second rank waits longer for its batches; it prints the stages of each rank."""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import mean
from threading import Event
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

import monitel
import monitel.torch

RANK = int(os.environ.get("RANK", "0"))
STEPS, LATE = 10, 0.2


class Rows(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Rows of data.

    Attributes:
        seconds: The time of each row.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, _index: int) -> torch.Tensor:
        begin = time.perf_counter()
        Event().wait(0.05 + LATE * RANK)
        self.seconds.append(time.perf_counter() - begin)
        return torch.ones(4)


class Model(LightningModule):  # type: ignore[misc]
    """One layer.

    Attributes:
        gradients: The time of each backward.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.gradients: list[float] = []

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.layer(batch).sum()
        return loss

    def on_after_backward(self) -> None:
        """Note the end of backward."""
        self.gradients.append(time.perf_counter())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train, and print the rank, its stages, and its own measurements of cycles and batches, in seconds."""
    rows, model = Rows(), Model()
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, enable_checkpointing=False, **quiet)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(window_size=float("inf")):
            trainer.fit(model, DataLoader(rows))
        windows = [event.window for event in events if event.window]
    found = {
        "rank": RANK,
        "stages": {
            each.attributes["training.stage"]: each.mean for each in windows if "training.stage" in each.attributes
        },
        "cycle": (model.gradients[-1] - model.gradients[0]) / (STEPS - 1),
        "batch": mean(rows.seconds[1:]),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
