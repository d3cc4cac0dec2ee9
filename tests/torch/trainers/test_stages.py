"""Stages of trainings by Lightning, transformers and accelerate, whose parts take known times of a manual clock."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from tests.torch.known_work import STEP, Work
from tests.torch.trainers.small_jobs import QUIET
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers import Trainer as TransformersTrainer

pytestmark = [pytest.mark.filterwarnings("ignore")]

DATA, OPTIMIZER, OTHER = (STEP[name] for name in ("data", "optimizer", "other"))
EVALUATION = 1000  # seconds of a batch

Stages = Callable[[], tuple[int, dict[str, float]]]


@pytest.fixture
def stages(windows: Any) -> Stages:
    """Instrument, and provide a function that ends this; it returns the number of cycles and the seconds of stages."""
    end = windows(sources="-waits,-compilation,-failures,-steps")

    def stages() -> tuple[int, dict[str, float]]:
        found = {name: window for name, window in end().items() if name in STEP}
        (cycles,) = {window.count for window in found.values()}
        return cycles, {name: window.sum for name, window in found.items()}

    return stages


def times(number: float, **more: float) -> dict[str, float]:
    """Return the seconds of so many micro-batches without an optimizer, and further seconds of some stages."""
    return {name: number * (0 if name == "optimizer" else each) + more.get(name, 0.0) for name, each in STEP.items()}


def batch(work: Work, rows: list[float]) -> dict[str, torch.Tensor]:
    """Make a batch of rows, each of which is the seconds that it takes."""
    work.takes(sum(rows))
    return {"rows": torch.ones(1)}


class Net(torch.nn.Module):  # type: ignore[misc]
    """One weight, with known times forward and backward."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work, self.weight = work, work.parameter

    def forward(self, rows: torch.Tensor, **_labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if torch.is_grad_enabled():
            return {"loss": self._work.forward(rows * self.weight)}
        self._work.takes(EVALUATION)
        return {"loss": rows.sum()}


class Automatic(LightningModule):  # type: ignore[misc]
    """Lightning runs backward and the optimizer, within the closure of its step."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work, self.net = work, Net(work)

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        self.net(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.work.optimizer()


def test_lightning(work: Work, stages: Stages) -> None:
    """Each step is a cycle, over the end of an epoch, too. Batches and forwards of a validation are ``other``."""
    options: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 2, "num_sanity_val_steps": 0, "logger": False}
    other = LambdaCallback(on_train_batch_end=lambda *_: work.takes(OTHER))
    loaders = [DataLoader(rows, collate_fn=partial(batch, work)) for rows in ([DATA] * 4, [EVALUATION] * 3)]
    Trainer(**QUIET, **options, enable_checkpointing=False, callbacks=[other]).fit(Automatic(work), *loaders)
    assert (7, times(7, optimizer=7 * OPTIMIZER, other=3 * 3 * 2 * EVALUATION)) == stages()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_transformers(work: Work, accumulated: int, stages: Stages) -> None:
    """Its loader requests a batch ahead, so the last steps of an epoch request none, and the first one two.

    The batches of a step are requested at once, so the time between its micro-batches is in ``forward``.
    """
    options: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    options |= {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "max_grad_norm": 0.0}
    options |= {"num_train_epochs": 2, "gradient_accumulation_steps": accumulated, "eval_strategy": "epoch"}
    micro_batches = TrainerCallback()
    micro_batches.on_step_end = micro_batches.on_substep_end = lambda *_, **__: work.takes(OTHER)
    trainer = TransformersTrainer(
        *(Net(work), TrainingArguments("out", **options)),
        data_collator=partial(batch, work),
        train_dataset=[DATA] * 4 * accumulated,
        eval_dataset=[EVALUATION] * 3,
        optimizers=(work.optimizer(), None),
        callbacks=[micro_batches],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    between = 7 * OTHER * (accumulated - 1)
    more = {"optimizer": 7 * OPTIMIZER, "data": -DATA, "other": 3 * 2 * EVALUATION - between, "forward": between}
    assert (7, times(7 * accumulated, **more)) == stages()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_accelerate(work: Work, accumulated: int, stages: Stages) -> None:
    """A prepared loader requests a batch ahead, and a prepared optimizer skips its step while it accumulates."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    loader = DataLoader([DATA] * 8, collate_fn=partial(batch, work))
    model, optimizer, loader = accelerator.prepare(Net(work), work.optimizer(), loader)
    for rows in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**rows)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            work.takes(OTHER)
    cycles = 8 // accumulated - 1
    assert (cycles, times(cycles * accumulated, optimizer=cycles * OPTIMIZER, data=-DATA)) == stages()
