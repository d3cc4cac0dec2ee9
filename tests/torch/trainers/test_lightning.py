"""The adapter for Lightning: what a backend receives, beside the numbers of other loggers and of the module itself."""

from __future__ import annotations

import csv
import logging
import pickle
from argparse import Namespace
from copy import deepcopy
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

import monitel

pytest.importorskip("lightning")

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from tests.torch.trainers.arrivals import numbers, status, totals
from tests.torch.trainers.lightning_job import BATCH, QUIET, ROWS, TOKENS, Model, Rows, batches

import monitel_otlp
from monitel.integrations import guarded
from monitel.integrations.lightning import MonitelCallback, MonitelLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.receiver import Receiver

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guarded, "_warned", set())


def create(*callbacks: Callback, **options: Any) -> Trainer:
    """Return a Trainer with the adapter."""
    return Trainer(**{"logger": MonitelLogger(), **QUIET, **options}, callbacks=[MonitelCallback(), *callbacks])


def pipeline(receiver: Receiver, export_interval: float = 3600.0) -> monitel_otlp.Pipeline:
    """Return a pipeline that sends to the receiver."""
    return monitel_otlp.configure(endpoint=receiver.url, spool_dir="spool", export_interval=export_interval)


def work(model: Model, step: int) -> dict[str, float]:
    """Return what the counters must be if ``model`` has trained from step 0."""
    return {
        "training.step": step,
        "training.steps": step,
        "training.samples": model.samples,
        "training.tokens": TOKENS * model.samples,
    }


def csv_rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the numbers of each row that CSVLogger has written."""
    (path,) = folder.rglob("metrics.csv")
    with path.open() as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    return [(int(row.pop("step")), row) for row in rows]


def test_numbers_are_those_of_another_logger(receiver: Receiver, tmp_path: Path) -> None:
    """Names, values and steps; also of the learning rate and of a validation. Secrets do not leave."""
    model = Model()
    model.before_batch = lambda _index: Event().wait(0.002)  # a gauge holds one value per millisecond
    with pipeline(receiver):
        trainer = create(LearningRateMonitor(), logger=[CSVLogger(tmp_path), MonitelLogger()])
        trainer.fit(model, batches(Rows()), batches(Rows()))
        trainer.validate(Model(), batches(Rows()), verbose=False)
    expected = csv_rows(tmp_path)
    assert expected == numbers(receiver)
    assert {"train_loss", "val_loss", "lr-AdamW", "epoch"} == {name for _, row in expected for name in row}
    for name in ("train_loss", "val_loss"):
        assert [row[name] for _, row in expected if name in row] == receiver.values(name)
    (config,) = receiver.records("run.config")
    assert {"lr": 0.1, "api_key": "***", "layers": [4, 1]} == config.body


def test_work_is_that_of_the_training(receiver: Receiver) -> None:
    """Accumulated gradients, a smaller last batch, validations and a sanity check, which do not count."""

    class Saves(Callback):  # type: ignore[misc]
        saved = 0

        def on_save_checkpoint(self, *_arguments: Any) -> None:
            self.saved += 1

    rows, model, saves = Rows(), Model(), Saves()
    with pipeline(receiver):
        trainer = create(saves, ModelCheckpoint("saved", every_n_train_steps=3), accumulate_grad_batches=2)
        trainer.fit(model, batches(rows), batches(Rows()))
        monitel.flush()
    assert (2 * ROWS, 2 * ROWS, 8) == (rows.served, model.samples, trainer.global_step)
    assert work(model, 8) == totals(receiver)
    assert [2] == receiver.values("training.evaluation.duration.count")
    assert saves.saved >= 2
    assert [saves.saved] == receiver.values("training.checkpoint.duration.count")
    (seconds,) = receiver.values("training.checkpoint.duration.sum")
    assert 0 < seconds < 60


def test_rate_of_samples_is_the_true_one(receiver: Receiver) -> None:
    """At each point of the counter, the number of samples is that of the module at this time, within 2 %."""
    model = Model()
    model.before_batch = lambda _index: Event().wait(0.005)
    with pipeline(receiver, 0.1):
        create(max_epochs=1).fit(model, batches(Rows(900)))
    points = [(point.time_ns, point.value) for point in receiver.points("training.samples")]
    between = [value for _, value in points if 0 < value < 900]
    assert len(between) >= 3
    for time_ns, value in points:
        assert abs(value - sum(rows for at_ns, rows in model.trained if at_ns <= time_ns)) <= 0.02 * 900
    assert 900 == points[-1][1]


def test_exception_in_training(receiver: Receiver) -> None:
    """The run has failed, and the numbers before the exception arrive."""
    model = Model()

    def fail(index: int) -> None:
        if index == 5:
            raise RuntimeError("no more")

    model.before_batch = fail
    with pytest.raises(RuntimeError, match="no more"), pipeline(receiver):
        create().fit(model, batches(Rows()))
    assert ["failed"] == status(receiver)
    assert [0, 1, 2, 3, 4] == [step for step, _ in numbers(receiver)]
    assert 5 * BATCH == model.samples
    assert work(model, 5) == totals(receiver)


def test_second_fit_starts_at_its_step(receiver: Receiver) -> None:
    """The step of a new Trainer is 0 again; the counters rise on."""
    models = [Model(), Model()]
    with pipeline(receiver):
        for model, epochs in zip(models, (2, 1), strict=True):
            create(max_epochs=epochs).fit(model, batches(Rows()))
            assert 7 * epochs == monitel.get_step()
    assert [*range(14), *range(7)] == [step for step, _ in numbers(receiver)]
    expected = {"training.step": 7, "training.steps": 21, "training.samples": sum(each.samples for each in models)}
    assert expected.items() <= totals(receiver).items()


def test_fast_dev_run(receiver: Receiver) -> None:
    """Its only batch counts; Lightning replaces all loggers."""
    model = Model()
    with pipeline(receiver):
        create(fast_dev_run=True).fit(model, batches(Rows()), batches(Rows()))
    assert BATCH == model.samples
    assert work(model, 1) == totals(receiver)
    assert [] == numbers(receiver)


def test_validation_and_test_alone(receiver: Receiver) -> None:
    """Neither counts work, and the numbers of both arrive."""
    with pipeline(receiver):
        trainer = create()
        trainer.validate(Model(), batches(Rows()), verbose=False)
        trainer.test(Model(), batches(Rows()), verbose=False)
        monitel.flush()
    assert {} == totals(receiver)
    assert 2 == len(receiver.values("val_loss"))
    assert [1] == receiver.values("training.evaluation.duration.count")


class Adversaries(LightningModule):  # type: ignore[misc]
    """Two optimizers that take turns in each batch, which is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.pair = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
        self.steps = 0

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> None:
        """Step with each optimizer."""
        for layer, optimizer in zip(self.pair, self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch[0]).mean())
            optimizer.step()
            self.steps += 1

    def configure_optimizers(self) -> Any:
        """Return two optimizers."""
        return [torch.optim.SGD(each.parameters(), 0.1) for each in self.pair], []


def test_several_optimizers(receiver: Receiver) -> None:
    """Each of their steps counts, as in ``trainer.global_step``; batches without ``input_ids`` have no tokens."""
    model = Adversaries()
    data = torch.utils.data.TensorDataset(torch.zeros(10, 1), torch.zeros(10))
    with pipeline(receiver):
        trainer = create(max_epochs=1)
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    assert 6 == model.steps == trainer.global_step
    assert {"training.step": 6, "training.steps": 6, "training.samples": 10} == totals(receiver)


def test_steps_are_counted_once_beside_instrument(receiver: Receiver) -> None:
    """``instrument()`` counts the steps, and the callback the samples; the step is that of Lightning."""
    from monitel.torch import instrument

    model = Model()
    with pipeline(receiver):
        with instrument(failures=False, compilation=False):
            trainer = create()
            trainer.fit(model, batches(Rows()))
        assert 14 == trainer.global_step == monitel.get_step()
    assert work(model, 14) == totals(receiver)


class Unstable(Model):
    """A model whose fourth batch of each epoch has gradients that are not finite."""

    changed = 0  # number of batches that have changed the parameters

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        """Train on a batch."""
        self._before = [each.detach().clone() for each in self.parameters()]
        return super().training_step(batch, index) * (float("inf") if index == 3 else 1.0)

    def on_train_batch_end(self, outputs: object, batch: dict[str, torch.Tensor], index: int) -> None:
        """Compare the parameters."""
        super().on_train_batch_end(outputs, batch, index)
        after = zip(self.parameters(), self._before, strict=True)
        self.changed += any(not torch.equal(each, before) for each, before in after)


def test_skipped_steps_beside_instrument(receiver: Receiver) -> None:
    """The step advances, as in Lightning, and ``training.steps`` has only steps that changed the parameters."""
    from monitel.torch import instrument

    model = Unstable()
    with pipeline(receiver), instrument(failures=False, compilation=False):
        scaling = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        create(plugins=[scaling]).fit(model, batches(Rows()))
    assert 12 == model.changed
    assert {**work(model, 14), "training.steps": 12} == totals(receiver)
    assert 2 == receiver.values("training.steps.skipped")[-1]


def test_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Functions of the user and handlers that raise do not stop the training; the rest is counted."""

    def broken(_argument: object) -> int:
        raise RuntimeError("broken")

    model = Model()
    monitel.register_event_handler(broken)
    with caplog.at_level(logging.WARNING, "monitel"):
        options = {"logger": MonitelLogger(), "callbacks": [MonitelCallback(samples=broken)]}
        trainer = Trainer(**QUIET, **options, enable_checkpointing=False)
        trainer.fit(model, batches(Rows()), batches(Rows()))
    assert 14 == trainer.global_step == monitel.counter("training.steps").total
    assert 0 == monitel.counter("training.samples").total
    assert TOKENS * 2 * ROWS == monitel.counter("training.tokens").total
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len({*messages})
    assert {"MonitelLogger.log_hyperparams", "MonitelLogger.log_metrics", "MonitelCallback._count_samples"} == {
        message.partition("()")[0] for message in messages
    }


def test_functions_of_the_user() -> None:
    """The numbers of samples and tokens of a batch can be given by functions."""
    callback = MonitelCallback(samples=lambda batch: 10 * len(batch["input_ids"]), tokens=lambda _batch: 1)
    Trainer(**QUIET, logger=False, callbacks=[callback]).fit(Model(), batches(Rows()))
    assert 20 * ROWS == monitel.counter("training.samples").total
    assert 14 == monitel.counter("training.tokens").total


def unpickle(trainer: Trainer) -> Trainer:
    """Return a copy by pickle."""
    return pickle.loads(pickle.dumps(trainer))


@pytest.mark.parametrize("copy", [deepcopy, unpickle])
def test_copied_trainer_saves_its_own_checkpoints(copy: Callable[[Trainer], Trainer]) -> None:
    """The copy goes on to train, and its checkpoints have its step."""
    trainer = create()
    trainer.fit(Model(), batches(Rows()))
    twin = copy(trainer)
    twin.fit_loop.max_epochs = 3
    twin.fit(Model(), batches(Rows()))
    twin.save_checkpoint("twin.ckpt")
    assert 21 == torch.load("twin.ckpt", weights_only=False)["global_step"]


@pytest.mark.parametrize(
    ("params", "expected"), [({"lr": 0.1}, [{"lr": 0.1}]), (Namespace(lr=0.1), [{"lr": 0.1}]), (None, []), (3, [])]
)
def test_hyperparameters_are_recorded_once(params: object, expected: object) -> None:
    """Mappings and Namespaces are recorded at the first call; nothing raises."""
    logger = MonitelLogger()
    with monitel.testing.capture_events() as events:
        logger.log_hyperparams(params)
        logger.log_hyperparams(params)
    assert expected == [event.config for event in events if isinstance(event, monitel.RunConfig)]
