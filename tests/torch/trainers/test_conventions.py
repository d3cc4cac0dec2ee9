"""The adapters follow the conventions of their frameworks: names, steps, folders, and other adapters beside them."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, register_tracker_class
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from tests.torch.trainers.small_jobs import QUIET, Net, Truth, rows
from transformers import Trainer as TransformersTrainer
from transformers import TrainingArguments

import monitel
import monitel_tensorboard
from monitel.integrations.accelerate import MonitelTracker
from monitel.integrations.lightning import MonitelLogger
from monitel.integrations.transformers import MonitelCallback

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 5


def logged(events: list[Any]) -> list[tuple[int | None, dict[str, Any]]]:
    return [(event.step, event.data) for event in events if event.name == "run.log"]


def configurations(events: list[Any]) -> list[dict[str, Any]]:
    return [event.config for event in events if event.name == "run.config"]


@pytest.mark.parametrize("by", ["name", "instance", "several"])
def test_accelerate_makes_the_tracker_or_takes_it(
    by: str, monkeypatch: pytest.MonkeyPatch, events: list[Any], tmp_path: Path
) -> None:
    """As its own trackers: ``(run_name, **init_kwargs)``, ``.tracker``, and options of each call."""
    monkeypatch.setattr("accelerate.tracking.LOGGER_TYPE_TO_CLASS", table := {**LOGGER_TYPE_TO_CLASS})
    monkeypatch.setattr("accelerate.accelerator.LOGGER_TYPE_TO_CLASS", table)
    register_tracker_class(MonitelTracker)
    log_with: dict[str, Any] = {"name": "monitel", "instance": MonitelTracker("run", fold=3), "several": ["monitel"]}
    accelerator = Accelerator(cpu=True, log_with=log_with[by], project_dir=tmp_path)
    accelerator.init_trackers("run", config={"lr": 0.1, "hf_token": "x"}, init_kwargs={"monitel": {"fold": 3}})
    accelerator.log({"loss": 0.5}, step=1, log_kwargs={"monitel": {"split": "test"}})
    accelerator.save_state(str(tmp_path / "state"))
    tracker = accelerator.get_tracker("monitel")
    assert (monitel, "run") == (accelerator.get_tracker("monitel", unwrap=True), tracker.run_name)
    accelerator.end_training()
    assert [{"lr": 0.1, "hf_token": "***"}] == configurations(events)
    assert [(1, {"loss": 0.5})] == logged(events)
    assert {"fold": 3, "split": "test"} == next(event.attributes for event in events if event.name == "run.log")
    assert 1 == len([event for event in events if event.name == "checkpoint.saved"])
    with pytest.raises(TypeError, match="attribute 'fold'"):
        MonitelTracker(fold=[3])


def test_accelerate_loses_only_what_is_wrong(events: list[Any]) -> None:
    """A name, a value, an attribute or a step; the numbers beside it are recorded, and each loss is counted."""
    accelerator = Accelerator(cpu=True, log_with=MonitelTracker())
    accelerator.init_trackers("run")
    accelerator.log({"loss": torch.tensor(0.5), "iou": {0: 0.5}, "": 1, "text": "x"}, step=8.0)
    accelerator.log({"loss": 0.5}, step=9, log_kwargs={"monitel": {"split": None, "fold": 2}})
    steps: list[Any] = [np.int64(3), torch.tensor(4), torch.tensor(5.0), np.float32(6)]
    steps += [7.9, "8", -1, "x", float("nan"), None]
    monitel.set_step(100)
    for step in steps:
        accelerator.log({"loss": 0.5}, step=step)
    first, second, *others = [event for event in events if event.name == "run.log"]
    assert ({"loss": 0.5, "iou.0": 0.5}, 8) == (first.data, first.step)
    assert ({"fold": 2}, 9) == (second.attributes, second.step)
    assert 3 == monitel.counter("monitel.log.left_out").total
    assert [3, 4, 5, 6, 7, 8, 100, 100, 100, 100] == [event.step for event in others]


@dataclass
class Optimizer:
    lr: float = 0.1
    names: frozenset[str] = frozenset({"b", "a"})


class Module(BoringModel):  # type: ignore[misc]
    """Records by the logger's experiment, too."""

    def __init__(self, optimizer: Any, function: Callable[..., Any], api_key: str) -> None:
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch: Any, index: int) -> Any:
        result = super().training_step(batch, index)
        self.log("loss", result["loss"])
        self.logger.experiment.emit("batch", index=index)
        return result


def fit(tmp_path: Path, **options: Any) -> Trainer:
    """Train some steps, and save a checkpoint and the configuration as LightningCLI does."""
    parser: Any = SimpleNamespace(save=lambda config, path, **_: Path(path).write_text(str(config), "utf-8"))
    saving: Any = SaveConfigCallback(parser, Namespace(lr=0.1))
    options |= {"max_epochs": 1, "limit_train_batches": STEPS, "limit_val_batches": 0, "log_every_n_steps": 1}
    trainer = Trainer(**QUIET, **options, default_root_dir=tmp_path, callbacks=[saving, ModelCheckpoint()])
    trainer.fit(Module(Optimizer(), partial(print, 1), api_key="x"))
    return trainer


def test_lightning_has_what_its_loggers_have(events: list[Any], tmp_path: Path) -> None:
    """``experiment``, ``prefix``, a tree of hyperparameters, and by default the folder of the Trainer, for its CLI."""
    trainer = fit(tmp_path, logger=MonitelLogger(prefix="fold"))
    assert [*range(STEPS)] == [step for step, data in logged(events) if {"fold-loss", "fold-epoch"} == data.keys()]
    assert [*range(STEPS)] == [event.data["index"] for event in events if event.name == "batch"]
    optimizer = {"lr": 0.1, "names": ["a", "b"]}
    function = {"_target_": "print", "_args_": [1]}
    assert [{"optimizer": optimizer, "function": function, "api_key": "***"}] == configurations(events)
    assert str(tmp_path) == trainer.log_dir
    names = {"config.yaml", f"checkpoints/epoch=0-step={STEPS}.ckpt"}
    assert names == {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*") if each.is_file()}


def test_lightning_with_folders_and_beside_another_logger(events: list[Any], tmp_path: Path) -> None:
    """The first logger decides the folders; each records."""
    logger = MonitelLogger(str(tmp_path / "logs"))
    trainer = fit(tmp_path, logger=[logger, CSVLogger(str(tmp_path / "csv"))])
    assert {str(tmp_path / "logs")} == {logger.save_dir, logger.root_dir, logger.log_dir, trainer.log_dir}
    assert [*tmp_path.glob("logs/checkpoints/*.ckpt")]
    assert [*tmp_path.glob("csv/lightning_logs/version_0/metrics.csv")]
    assert STEPS == len(logged(events))


def test_logger_of_lightning_by_hand(events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers at whole steps, hyperparameters in each form, once; and nothing on other ranks."""
    logger = MonitelLogger()
    logger.log_metrics({"a": torch.tensor(0.5), "b": {1: 2}, "": 3}, step=4.0)
    logger.log_metrics(metrics={"a": 1}, step=None)
    given: list[Any] = [Namespace(lr=0.1), {"lr": 0.1}, Optimizer(), None]
    for params in given:
        logger.log_hyperparams(params)
    for _run in range(2):  # each has its configuration
        with monitel_tensorboard.install("runs"):
            logger.log_hyperparams(params={"lr": 0.2}, metrics={"hp": 0})
    logger.after_save_checkpoint(ModelCheckpoint())
    logger.finalize("success")
    assert [(4, {"a": 0.5, "b.1": 2}), (None, {"a": 1})] == logged(events)
    assert [{"lr": 0.1}, {"lr": 0.1, "names": ["a", "b"]}, {"lr": 0.2}, {"lr": 0.2}] == configurations(events)
    assert (monitel, "", "") == (logger.experiment, logger.name, logger.version)
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    before = len(events)
    logger.experiment.log({"a": 1})
    logger.log_metrics({"a": 1})
    logger.log_hyperparams({"a": 1})
    assert before == len(events)


@pytest.mark.parametrize("by", ["report_to", "class", "instance"])
def test_transformers_takes_the_callback_by_name(by: str, events: list[Any], tmp_path: Path) -> None:
    """``report_to="monitel"``, the class, or an instance: the same numbers and configuration, once."""
    callbacks: Any = {"class": [MonitelCallback], "instance": [MonitelCallback()]}.get(by)
    usual: dict[str, Any] = {"disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "save_strategy": "no"}
    usual |= {"report_to": "monitel" if by == "report_to" else "none", "hub_token": "x", "max_steps": 2}
    arguments = TrainingArguments(str(tmp_path), remove_unused_columns=False, **usual)
    net = Net(Truth())
    net.config = SimpleNamespace(eos_token="</s>", layers={2, 1})
    TransformersTrainer(net, arguments, train_dataset=rows(), callbacks=callbacks).train()
    assert [1, 2] == [step for step, data in logged(events) if "train.loss" in data]
    (config,) = configurations(events)
    assert ("***", "</s>", [1, 2]) == (config["args"]["hub_token"], *[*config["model"].values()][:2])
