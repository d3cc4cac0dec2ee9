"""One small training by each trainer: 20 rows, 4 a step, two epochs, a checkpoint at step 5, an evaluation.

Each function trains with the adapter, and notes what the training itself has counted.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

import monitel

ROWS, BATCH, EPOCHS, TOKENS = 20, 4, 2, 5
STEPS = EPOCHS * ROWS // BATCH
CHECKPOINT = 5  # step
COUNTING = ["lightning", "transformers"]  # accelerate's tracker sees neither batches nor evaluations
#: Options of a Trainer of Lightning.
QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


@dataclass
class Truth:
    """The numbers that a training has counted."""

    before_step: Callable[[int], object] = bool  # called before each step with its number, from 1
    losses: dict[int, float] = field(default_factory=dict)  # each logged loss, by step
    samples: int = 0  # number of rows that were trained
    activities: set[str] = field(default_factory=set)  # activities of the process in batches of the evaluation

    def evaluate(self) -> None:
        book = monitel.ledger()
        assert book is not None
        self.activities.add(book.current)

    def train(self, rows: int) -> None:
        self.before_step(self.samples // BATCH + 1)
        self.samples += rows


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(0, 16, (TOKENS,), generator=generator)} for _ in range(ROWS)]


class Net(torch.nn.Module):  # type: ignore[misc]
    """Predicts whether a token is even."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.truth = truth
        self.layers = torch.nn.Sequential(torch.nn.Embedding(16, 4), torch.nn.Linear(4, 1))

    def forward(self, input_ids: torch.Tensor, **_others: Any) -> dict[str, torch.Tensor]:
        if torch.is_grad_enabled():
            self.truth.train(len(input_ids))
        else:
            self.truth.evaluate()
        expected = (input_ids % 2).float()
        return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(self.layers(input_ids)[..., 0], expected)}


def with_lightning(truth: Truth) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from monitel.integrations.lightning import MonitelCallback, MonitelLogger

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self, lr: float, api_key: str) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = Net(truth)

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch)["loss"]
            self.log("train_loss", loss)
            truth.losses[self.trainer.global_step] = loss.item()
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    options = {**QUIET, "log_every_n_steps": 1, "max_epochs": EPOCHS, "num_sanity_val_steps": 0}
    saving = ModelCheckpoint("saved", every_n_train_steps=CHECKPOINT, save_top_k=-1)
    callbacks = [MonitelCallback(), MonitelCallback(), saving]  # the second one adds nothing, nor with transformers
    if "WORLD_SIZE" in os.environ:
        options |= {"strategy": "ddp", "devices": int(os.environ["WORLD_SIZE"])}
    trainer = Trainer(**options, logger=MonitelLogger(), callbacks=callbacks)
    loaders = [DataLoader(rows(), batch_size=BATCH) for _ in range(2)]
    trainer.fit(Module(0.1, api_key="hidden"), *loaders)


def with_transformers(truth: Truth) -> None:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from monitel.integrations.transformers import MonitelCallback

    usual: dict[str, Any] = dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), BATCH)
    usual |= {"report_to": "monitel", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "hub_token": "hidden"}
    usual |= {"save_strategy": "steps", "save_steps": CHECKPOINT, "eval_strategy": "epoch", "learning_rate": 0.1}
    arguments = TrainingArguments("saved", num_train_epochs=EPOCHS, remove_unused_columns=False, **usual)
    trainer = Trainer(Net(truth), arguments, train_dataset=rows(), eval_dataset=rows(), callbacks=[MonitelCallback()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    truth.losses |= {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}


def with_accelerate(truth: Truth) -> None:
    from accelerate import Accelerator

    from monitel.integrations.accelerate import MonitelTracker

    accelerator = Accelerator(cpu=True, log_with=[MonitelTracker()])
    accelerator.init_trackers("project", config={"lr": 0.1, "hub_token": "hidden"})
    net = Net(truth)
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(rows(), batch_size=BATCH)
    )
    step = 0
    for _ in range(EPOCHS):
        for batch in loader:
            step += 1
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"train.loss": loss.item()}, step)
            monitel.set_step(step)
            truth.losses[step] = loss.item()
            if step % CHECKPOINT == 0:
                accelerator.save_state(f"saved/{step}")
    accelerator.end_training()


TRAINERS = {"lightning": with_lightning, "transformers": with_transformers, "accelerate": with_accelerate}


def main(name: str, url: str) -> None:
    """Train as a script, and print what this rank has counted."""
    import monitel_otlp

    monitel_otlp.configure(endpoint=url, spool_dir="spool", export_interval=3600.0)
    truth = Truth()
    TRAINERS[name](truth)
    sys.stdout.write(json.dumps([int(os.environ.get("RANK", "0")), truth.samples]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
