"""Stages of trainings by Lightning, transformers and accelerate, whose parts take known times of a manual clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers import Trainer as TransformersTrainer

import monitel
import monitel.torch
from monitel.testing import ManualClock

pytestmark = [pytest.mark.filterwarnings("ignore")]

#: Seconds of each part of a training, and of a batch of an evaluation.
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER, EVALUATION = 16, 2, 4, 8, 1, 1000
PLAIN = {"optimizer": OPTIMIZER, "other": OTHER, "data": DATA, "forward": FORWARD, "backward": BACKWARD}


@contextmanager
def measured() -> Iterator[dict[str, monitel.Window]]:
    """Instrument the block, and fill a dict with the windows of the stages at its end."""
    found: dict[str, monitel.Window] = {}
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(sources="-waits,-compilation,-failures", window_size=float("inf")):
            yield found
        windows = [event.window for event in events if event.window]
        found |= {
            str(each.attributes["training.stage"]): each for each in windows if "training.stage" in each.attributes
        }


def sums(stages: dict[str, monitel.Window]) -> dict[str, float]:
    """Return the seconds of each stage in all cycles."""
    return {name: window.mean * window.count for name, window in stages.items()}


def times(number: float, **more: float) -> dict[str, float]:
    """Return the seconds of so many micro-batches without an optimizer, and further seconds of some stages."""
    return {name: number * (0 if name == "optimizer" else each) + more.get(name, 0.0) for name, each in PLAIN.items()}


class Rows(Dataset[Any]):  # type: ignore[misc]
    """Rows, each of which takes some seconds."""

    def __init__(self, clock: ManualClock, rows: int, seconds: int = DATA) -> None:
        self._clock, self._rows, self._seconds = clock, rows, seconds

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
        self._clock.advance(self._seconds)
        return {"rows": torch.ones(1)}


class Net(torch.nn.Module):  # type: ignore[misc]
    """One weight, with known times forward and backward."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._advance = clock.advance
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, rows: torch.Tensor, **_labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self._advance(FORWARD if torch.is_grad_enabled() else EVALUATION)
        loss = (rows * self.weight).sum()
        if loss.requires_grad:
            loss.register_hook(lambda _gradient: self._advance(BACKWARD))
        return {"loss": loss}


class Slow(torch.optim.SGD):  # type: ignore[misc]
    """Takes some seconds after its closure."""

    def __init__(self, clock: ManualClock, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self._advance = clock.advance

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        self._advance(OPTIMIZER)
        super().step()
        return loss


class Automatic(LightningModule):  # type: ignore[misc]
    """Lightning runs backward and the optimizer, within the closure of its step."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.net = clock, Net(clock)

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        self.net(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Slow(self.clock, self.net)


class Logging(Callback):  # type: ignore[misc]
    """Takes a second after each batch."""

    def on_train_batch_end(self, _trainer: Trainer, module: Any, *_: Any) -> None:
        module.clock.advance(OTHER)


def fit(model: Automatic, rows: int, evaluation: int = 0, **options: Any) -> None:
    """Train with Lightning, and evaluate so many batches at the end of each epoch."""
    usual = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    usual |= {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0, "callbacks": [Logging()]}
    loaders = [DataLoader(Rows(model.clock, rows))]
    if evaluation:
        loaders.append(DataLoader(Rows(model.clock, evaluation, EVALUATION)))
    Trainer(**{**usual, **options}).fit(model, *loaders)


@pytest.mark.parametrize(("evaluated", "seconds"), [(0, 0), (3, 3 * 3 * 2 * EVALUATION)])
def test_lightning(evaluated: int, seconds: int, clock: ManualClock) -> None:
    """Each step is a cycle, over the end of an epoch, too. Batches and forwards of a validation are ``other``."""
    with measured() as stages:
        fit(Automatic(clock), 4, evaluated, val_check_interval=2, max_epochs=2)
    assert {7} == {window.count for window in stages.values()}
    assert times(7, optimizer=7 * OPTIMIZER, other=seconds) == sums(stages)


class Steps(TrainerCallback):  # type: ignore[misc]
    """Takes a second after each micro-batch."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._clock.advance(OTHER)

    on_substep_end = on_step_end


def train(clock: ManualClock, rows: int, **options: Any) -> None:
    usual = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "num_train_epochs": 1}
    usual |= {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "max_grad_norm": 0.0}
    arguments = TrainingArguments("out", **{**usual, **options})
    model = Net(clock)
    trainer = TransformersTrainer(
        *(model, arguments),
        train_dataset=Rows(clock, rows),
        eval_dataset=Rows(clock, 3, EVALUATION),
        optimizers=(Slow(clock, model), None),
        callbacks=[Steps(clock)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def test_transformers(clock: ManualClock) -> None:
    """Its loader requests a batch ahead, so the last steps of an epoch request none, and the first one two."""
    with measured() as stages:
        train(clock, 4, num_train_epochs=2)
    assert {7} == {window.count for window in stages.values()}
    assert times(7, optimizer=7 * OPTIMIZER, data=-DATA) == sums(stages)


def test_transformers_accumulates_and_evaluates(clock: ManualClock) -> None:
    """The batches of a step are requested at once, so the time between its micro-batches is in ``forward``."""
    with measured() as stages:
        train(clock, 8, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=1)
    assert {3} == {window.count for window in stages.values()}
    evaluations, between = 3 * 3 * 2 * EVALUATION, 3 * OTHER
    more = {"optimizer": 3 * OPTIMIZER, "data": -DATA, "other": evaluations - between, "forward": between}
    assert times(6, **more) == sums(stages)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_accelerate(clock: ManualClock, accumulated: int) -> None:
    """A prepared loader requests a batch ahead, and a prepared optimizer skips its step while it accumulates."""
    model = Net(clock)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model, optimizer, loader = accelerator.prepare(model, Slow(clock, model), DataLoader(Rows(clock, 8)))
    with measured() as stages:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                clock.advance(OTHER)
    cycles = 8 // accumulated - 1
    assert {cycles} == {window.count for window in stages.values()}
    assert times(cycles * accumulated, optimizer=cycles * OPTIMIZER, data=-DATA) == sums(stages)
