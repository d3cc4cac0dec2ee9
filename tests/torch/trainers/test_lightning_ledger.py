"""The ledger of a training by Lightning: evaluations and checkpoints, beside a measurement of Lightning's methods."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import monitel

pytest.importorskip("lightning")

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.prediction_loop import _PredictionLoop
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from tests.torch.trainers.lightning_job import QUIET, Model, Rows, batches
from tests.torch.trainers.stopwatch import Stopwatch, checkpoints

from monitel.integrations.lightning import MonitelCallback

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Measure evaluations and checkpoints of Lightning."""
    found = Stopwatch(monkeypatch)
    found.measure("evaluation", _EvaluationLoop, "run")
    found.measure("evaluation", _PredictionLoop, "run")
    found.measure("checkpoint.save", Trainer, "save_checkpoint")
    found.measure("checkpoint.load", _CheckpointConnector, "resume_start", "restore_model", "restore_training_state")
    return found


class Slow(Callback):  # type: ignore[misc]
    """Waits 50 ms in each validation batch, and when a checkpoint is saved or loaded."""

    def _wait(self, *_arguments: Any) -> None:
        Event().wait(0.05)

    on_validation_batch_end = on_predict_batch_end = on_save_checkpoint = on_load_checkpoint = _wait


class Predicting(Model):
    """A model that predicts."""

    def predict_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        """Return the loss."""
        return self.loss(batch)


def create(*callbacks: Callback, **options: Any) -> Trainer:
    """Return a Trainer with the adapter."""
    return Trainer(**{**QUIET, "logger": False, **options}, callbacks=[MonitelCallback(), *callbacks])


def every(steps: int) -> ModelCheckpoint:
    """Return a callback that keeps a checkpoint of every so many steps."""
    return ModelCheckpoint("saved", "{step}", every_n_train_steps=steps, save_top_k=-1)


@pytest.mark.parametrize("instrumented", [False, True])
def test_each_activity_is_measured(stopwatch: Stopwatch, events: list[monitel.Event], *, instrumented: bool) -> None:
    """A training, its resumption at a lower step, a test and a prediction; each checkpoint has one event."""
    steps: list[int | None] = []
    with ExitStack() as stack:
        if instrumented:
            from monitel.torch import instrument

            stack.enter_context(instrument(failures=False, compilation=False))
        create(Slow(), every(6)).fit(Model(), batches(Rows()), batches(Rows(9)))
        resumed = Predicting()
        resumed.before_batch = lambda _index: steps.append(monitel.get_step())
        trainer = create(Slow(), every(8), enable_checkpointing=True)
        trainer.fit(resumed, batches(Rows()), ckpt_path="saved/step=6.ckpt")
        trainer.validate(resumed, batches(Rows(9)), verbose=False)
        trainer.predict(resumed, batches(Rows(3)))
    found = stopwatch.check()
    assert found["evaluation"] >= (2 + 3 + 3 + 3 + 1) * 0.05
    assert found["checkpoint.save"] >= 3 * 0.05
    assert found["checkpoint.load"] >= 0.05
    assert instrumented == ("data" in found)
    assert [6, 7, 8, 9, 10, 11, 12, 13] == steps
    names = [("saved", 6), ("saved", 12), ("loaded", 6), ("saved", 8)]
    paths = ["step=6.ckpt", "step=12.ckpt", "step=6.ckpt", "step=8.ckpt"]
    sizes = [Path("saved", path).stat().st_size for path in paths]
    assert [(*name, path, size) for name, path, size in zip(names, paths, sizes, strict=True)] == checkpoints(events)
    seconds = [float(event.data["checkpoint.duration"]) for event in events if event.name == "checkpoint.saved"]
    assert pytest.approx(stopwatch.seconds["checkpoint.save"], abs=0.15) == sum(seconds)


class SlowIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes for 200 ms, and fails at the third file."""

    written = 0

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        Event().wait(0.2)
        self.written += 1
        if self.written == 3:
            raise OSError("no space")
        super().save_checkpoint(checkpoint, path, storage_options)


def test_checkpoint_in_the_background(stopwatch: Stopwatch, events: list[monitel.Event]) -> None:
    """Only what blocks the training counts; the event comes when the file is there, or could not be written."""
    trainer = create(plugins=[AsyncCheckpointIO(SlowIO())], enable_checkpointing=False)
    trainer.fit(Model(), batches(Rows()))
    for name in ("first", "second", "third"):
        trainer.save_checkpoint(name)
    with pytest.raises(OSError, match="no space"):
        trainer.strategy.teardown()
    found = stopwatch.check()
    assert found["checkpoint.save"] < 0.2
    sizes = [Path(name).stat().st_size for name in ("first", "second")]
    saved = [("saved", 14, "first", sizes[0]), ("saved", 14, "second", sizes[1]), ("failed", 14, "third", None)]
    assert saved == checkpoints(events)
    for number, event in enumerate(events, start=1):
        assert float(event.data["checkpoint.duration"]) >= number * 0.15
        assert float(event.data["checkpoint.blocked"]) < 0.2


class Failing(Model):
    """A model whose validation raises after the sanity check."""

    error: BaseException = RuntimeError("no more")

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        """Fail, but not in the sanity check."""
        if not self.trainer.sanity_checking:
            raise self.error
        super().validation_step(batch, index)


@pytest.mark.parametrize("error", [RuntimeError("no more"), KeyboardInterrupt(), StopIteration()])
def test_evaluation_that_raises_ends(error: BaseException) -> None:
    """The evaluation ends, and the exception is the same as without the adapter."""
    model = Failing()
    model.error = error
    raised = []
    for callbacks in ([], [MonitelCallback()]):
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            patch.setattr("signal.signal", lambda *_arguments: None)  # Lightning ignores SIGINT after an interrupt
            if not isinstance(error, StopIteration):
                raised.append(stack.enter_context(pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit))))
            trainer = Trainer(**QUIET, logger=False, enable_checkpointing=False, callbacks=callbacks)
            trainer.fit(model, batches(Rows()), batches(Rows()))
    assert 1 >= len({(each.type, str(each.value)) for each in raised})
    book = monitel.ledger()
    assert book is not None
    assert book.activities["evaluation"] > 0
    assert "step" == book.current


def test_save_that_fails(stopwatch: Stopwatch, events: list[monitel.Event], tmp_path: Path) -> None:
    """The exception is Lightning's, and the next checkpoint has its event."""
    trainer = create(enable_checkpointing=False)
    trainer.fit(Model(), batches(Rows()))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        trainer.save_checkpoint(tmp_path / "file" / "last.ckpt")
    trainer.save_checkpoint("next.ckpt")
    assert ["failed", "saved"] == [name for name, *_ in checkpoints(events)]
    stopwatch.check()


def test_replaced_method_of_a_copied_trainer(events: list[monitel.Event]) -> None:
    """A program's own ``save_checkpoint`` of a trainer runs, and a copy of the trainer saves its own state."""
    trainer = create(enable_checkpointing=False)
    saved = []

    def save(path: str) -> None:
        saved.append(path)
        Trainer.save_checkpoint(trainer, path)

    trainer.save_checkpoint = save
    trainer.fit(Model(), batches(Rows()))
    trainer.save_checkpoint("own.ckpt")
    del trainer._monitel_save_checkpoint
    twin = deepcopy(trainer)
    twin.fit_loop.max_epochs = 3
    twin.fit(Model(), batches(Rows()), batches(Rows()))
    twin.save_checkpoint("twin.ckpt")
    assert ["own.ckpt"] == saved
    assert [("saved", 14, "own.ckpt"), ("saved", 21, "twin.ckpt")] == [each[:3] for each in checkpoints(events)]
    assert 21 == torch.load("twin.ckpt", weights_only=False)["global_step"]


def test_trainer_without_the_adapter_is_not_observed(events: list[monitel.Event]) -> None:
    """Another trainer of the process has no activities."""
    create(enable_checkpointing=False).fit(Model(), batches(Rows()))
    other = Trainer(**QUIET, logger=False, enable_checkpointing=False)
    other.validate(Model(), batches(Rows()), verbose=False)
    other.save_checkpoint("other.ckpt")
    book = monitel.ledger()
    assert book is not None
    assert not {"evaluation", "checkpoint.save"} & book.activities.keys()
    assert [] == checkpoints(events)
