"""A small training by Lightning that counts its own work; as a script, it trains with monitel and prints the counts.

Arguments of the script: the URL of a backend, and the other arguments of ``main`` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

lightning: Any = import_module(os.environ.get("LIGHTNING", "lightning.pytorch"))

ROWS, BATCH, TOKENS = 20, 3, 5
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
    "max_epochs": 2,
}


class Rows(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Texts of random tokens. ``served`` is the number of rows that were read."""

    def __init__(self, rows: int = ROWS) -> None:
        self._ids = torch.randint(0, 16, (rows, TOKENS), generator=torch.Generator().manual_seed(0))
        self.served = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.served += 1
        return {"weight": torch.tensor(1.0), "input_ids": self._ids[index]}


def batches(rows: Rows, size: int = BATCH) -> DataLoader[Any]:
    """Return a loader whose last batch may be smaller."""
    return DataLoader(rows, batch_size=size)


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Predicts whether a token is even.

    Attributes:
        trained: Time (Unix nanoseconds) and number of rows of each training batch.
        before_batch: Called at the start of each training batch with its index.
    """

    def __init__(self, lr: float = 0.1, api_key: str = "hidden", layers: Sequence[int] = (4, 1)) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = torch.nn.Sequential(torch.nn.Embedding(16, layers[0]), torch.nn.Linear(layers[0], layers[1]))
        self.trained: list[tuple[int, int]] = []
        self.before_batch: Callable[[int], object] = bool  # which does nothing

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        expected = (batch["input_ids"] % 2).float()
        return torch.nn.functional.binary_cross_entropy_with_logits(self.network(batch["input_ids"])[..., 0], expected)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        """Train on a batch, and log its loss."""
        self.before_batch(index)
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, _outputs: object, batch: dict[str, torch.Tensor], _index: int) -> None:
        """Count the batch."""
        self.trained.append((time.time_ns(), len(batch["input_ids"])))

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        """Log the loss of a batch."""
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])

    @property
    def samples(self) -> int:
        """Number of rows in all training batches."""
        return sum(rows for _, rows in self.trained)


def main(
    url: str, trainer_options: dict[str, Any], ckpt_path: str | None = None, signal_at: tuple[int, int] | None = None
) -> None:
    """Train with monitel; at the end print the rank, the global step, and the number of trained rows.

    Args:
        url: URL of a backend.
        trainer_options: Arguments of the Trainer.
        ckpt_path: A checkpoint to resume from.
        signal_at: A signal that the process sends to itself, and the batch at whose start it does.
    """
    import monitel_otlp
    from monitel.integrations.lightning import MonitelCallback, MonitelLogger

    monitel_otlp.configure(endpoint=url, spool_dir="spool", export_interval=3600.0)
    model = Model()
    if signal_at is not None:
        number, batch = signal_at
        model.before_batch = lambda index: os.kill(os.getpid(), number) if index == batch else None
    trainer = lightning.Trainer(**{**QUIET, **trainer_options}, logger=MonitelLogger(), callbacks=[MonitelCallback()])
    try:
        trainer.fit(model, batches(Rows()), ckpt_path=ckpt_path)
    finally:
        found = {"rank": trainer.global_rank, "step": trainer.global_step, "samples": model.samples}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
