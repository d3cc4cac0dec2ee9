"""A job of Lightning with a validation: a tiny model with random weights."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from tests.integration.nightly.jobs import truth
from torch.utils.data import DataLoader, TensorDataset

from monitel.integrations.lightning import MonitelCallback, MonitelLogger

SAMPLES, BATCH = 2_002, 4


class Model(LightningModule):  # type: ignore[misc]
    """One layer."""

    def __init__(self, learning_rate: float, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch: Any, _index: int) -> Any:
        """Return the loss."""
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        truth.batch_done(len(batch[0]))
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def main() -> None:
    """Train one epoch, with a validation after each half of it."""
    truth.start()
    rows = torch.randn(SAMPLES, truth.WIDTH)
    beside = CSVLogger("csv")
    trainer = Trainer(
        max_epochs=1,
        val_check_interval=0.5,
        log_every_n_steps=25,
        logger=[MonitelLogger(), beside],
        callbacks=[MonitelCallback()],
        accelerator="cpu",
        devices=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [DataLoader(TensorDataset(part), BATCH) for part in (rows, rows[:8])]
    trainer.fit(Model(0.01, truth.WIDTH), *loaders)
    for row in csv.DictReader(Path(beside.log_dir, "metrics.csv").read_text().splitlines()):
        step = int(row.pop("step"))
        truth.NUMBERS.append((step, {name: float(value) for name, value in row.items() if value}))
    truth.CONFIG.update(learning_rate=0.01, width=truth.WIDTH)
    truth.report()


if __name__ == "__main__":
    main()
