"""The logger and the callback for Lightning, as ``lightning`` or ``pytorch_lightning``.

The classes extend those of the packages that are imported already, or else of the one that is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import monitel
from monitel.integrations.wrapping import guarded, record_config, step_of, wrap_class
from monitel.training.activities import Activity
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint
from monitel.training.counters import begin_counters, count_work

Measure = Callable[[Any], int]

_imported: list[str] = [name for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules]
_installed = "lightning.pytorch" if find_spec("lightning") is not None else "pytorch_lightning"
_packages: list[Any] = [import_module(name) for name in _imported or [_installed]]
_Logger: Any = type("_Logger", tuple(each.loggers.Logger for each in _packages), {})
_Callback: Any = type("_Callback", tuple(each.Callback for each in _packages), {})
_utilities = _packages[0].utilities


class MonitelLogger(_Logger):  # type: ignore[misc]
    """Passes numbers of Lightning to :func:`monitel.log`, and hyperparameters to :func:`monitel.config`.

    It records on rank zero, as all loggers of Lightning do. Names and steps are those that Lightning passes to loggers.
    What looks like a secret in hyperparameters is masked. Exceptions of telemetry are logged once, and never raised.

    Args:
        save_dir: The folder for what Lightning saves beside a logger: checkpoints, and the configuration of
            LightningCLI. By default ``default_root_dir`` of the Trainer, as without a logger.
        prefix: Precedes each name of a number, as in the loggers of Lightning: ``prefix-train_loss``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> def create_trainer():
        ...     return Trainer(logger=MonitelLogger(), callbacks=[MonitelCallback()])
    """

    name = version = ""  # save_dir has no folders for them

    def __init__(self, save_dir: str | None = None, *, prefix: str = "") -> None:
        super().__init__()
        self._save_dir, self._prefix = save_dir, prefix
        self._trainers_dir = "."  # until a Trainer has one
        self._recorded: tuple[Any, str] = None, ""  # the run, and the last hyperparameters
        for package in _packages:
            wrap_class(package.Trainer, "_run", _running)

    @property
    def save_dir(self) -> str:
        """The folder for checkpoints, and for the configuration of LightningCLI."""
        return os.fspath(self._save_dir or self._trainers_dir)

    root_dir = log_dir = save_dir

    @property
    @_packages[0].loggers.logger.rank_zero_experiment  # type: ignore[untyped-decorator]
    def experiment(self) -> ModuleType:
        """The module ``monitel`` on rank zero; on other ranks an object whose methods do nothing."""
        return monitel

    @_utilities.rank_zero_only  # type: ignore[untyped-decorator]
    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers; by default at the step of :func:`monitel.set_step`."""
        named = {f"{self._prefix}-{name}": value for name, value in metrics.items()} if self._prefix else metrics
        monitel.log(named, step=step_of(step))

    @_utilities.rank_zero_only  # type: ignore[untyped-decorator]
    @guarded
    def log_hyperparams(self, params: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Record a mapping, a Namespace or a dataclass if it has changed."""
        if params is not None:
            record_config(self, params)


class MonitelCallback(_Callback):  # type: ignore[misc]
    """Counts the work of each process in ``fit()``, and sets the step of the process to ``trainer.global_step``.

    * **Counters**: ``training.samples``, ``training.tokens`` if there are any, and, unless
      :func:`monitel.torch.instrument` counts them, ``training.steps``. Validation, test and prediction do not count.
    * **Activities** of :func:`monitel.ledger`: ``evaluation`` (validation, sanity check, test and prediction),
      ``checkpoint.save`` and ``checkpoint.load``.
    * **Events** of rank zero: ``checkpoint.saved``, ``checkpoint.loaded`` and ``checkpoint.failed``.

    Exceptions of telemetry are logged once, and never raised.

    Args:
        samples: Returns the number of samples of a batch. By default the length of its first tensor, as in Lightning's
            ``self.log()``.
        tokens: Returns the number of tokens of a batch. By default the number of elements of ``batch["input_ids"]``,
            padding included.

    Example:
        >>> callback = MonitelCallback(samples=lambda batch: batch.num_graphs)
    """

    def __init__(self, *, samples: Measure | None = None, tokens: Measure | None = None) -> None:
        super().__init__()
        self._samples: Measure = samples or _utilities.data.extract_batch_size
        self._tokens = tokens or _input_ids
        self._step = 0

    @guarded
    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Observe the trainer's evaluations and checkpoints. Lightning's hooks miss how they end."""
        connector, validation = trainer._checkpoint_connector, trainer.fit_loop.epoch_loop.val_loop
        loops = (validation, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
        observed: list[tuple[Any, str, Callable[..., Any]]] = [
            (trainer, "save_checkpoint", _saving),
            (connector, "_restore_modules_and_callbacks", _loading),
            (connector, "restore_training_state", _restoring),
            *((loop, "run", _evaluating) for loop in loops),
        ]
        if _is_asynchronous(trainer.strategy.checkpoint_io):
            observed.append((trainer.strategy.checkpoint_io.checkpoint_io, "save_checkpoint", _writing))
        for each, name, make in observed:
            wrap_class(type(each), name, make)

    @guarded
    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Set the first step, which is that of the checkpoint after a resume."""
        self._step = trainer.global_step
        monitel.set_step(self._step)
        begin_counters(tokens=self._tokens is not _input_ids)

    @guarded
    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, batch: Any, _index: int) -> None:
        """Count a batch, and the optimizer steps since the last one."""
        before, self._step = self._step, trainer.global_step
        monitel.set_step(self._step)
        if (_observer(trainer) or self) is not self:  # of several callbacks, the first one counts
            return
        count_work("training.steps", self._step - before)
        if batch is not None:
            self._count_samples(batch)
            self._count_tokens(batch)

    @guarded
    def _count_samples(self, batch: Any) -> None:
        count_work("training.samples", self._samples(batch))

    @guarded
    def _count_tokens(self, batch: Any) -> None:
        count_work("training.tokens", self._tokens(batch))


def _running(trainer: Any, *_args: Any, **_kwargs: Any) -> None:
    """Set the folder of the loggers of a trainer, as Lightning does for its default logger."""
    for logger in trainer.loggers:
        if isinstance(logger, MonitelLogger):
            logger._trainers_dir = trainer.default_root_dir


def _input_ids(batch: Any) -> int:
    return int(batch["input_ids"].numel()) if isinstance(batch, Mapping) and "input_ids" in batch else 0


def _is_asynchronous(plugin: object) -> bool:
    return any(each.__name__ == "AsyncCheckpointIO" for each in type(plugin).__mro__)  # that of either package


def _observer(trainer: Any) -> MonitelCallback | None:
    return next((each for each in trainer.callbacks if isinstance(each, MonitelCallback)), None)


def _saving(trainer: Any, filepath: Any, *_args: Any, **_kwargs: Any) -> Checkpoint | None:
    if not _observer(trainer):
        return None
    save = Checkpoint(SAVE, filepath, logs=trainer.is_global_zero, step=trainer.global_step)
    if trainer.is_global_zero and _is_asynchronous(trainer.strategy.checkpoint_io):
        writer = trainer.strategy.checkpoint_io.checkpoint_io
        vars(writer).setdefault("_monitel_pending", []).append((str(filepath), save.defer()))
    return save


def _writing(writer: Any, _checkpoint: Any, path: Any, *_args: Any, **_kwargs: Any) -> Checkpoint | None:
    """Observe the part of a checkpoint that AsyncCheckpointIO writes in a thread: its end is that of the checkpoint."""
    pending = vars(writer).get("_monitel_pending")
    if pending is None:
        return None
    write = Checkpoint(SAVE, path, logs=False)
    write.ended = partial(_written, pending)
    return write


def _written(pending: list[Any], write: Checkpoint, error: BaseException | None) -> None:
    for each in [each for each in pending if each[0] == str(write.path)]:  # paths, and functions that end checkpoints
        pending.remove(each)
        if each[1](error):  # else it has failed before it could be written
            break


def _loading(connector: Any, checkpoint_path: Any = None, *_args: Any, **_kwargs: Any) -> Checkpoint | None:
    """Observe the first part of a restore: reading the file, and the state of the model."""
    loads = checkpoint_path and _observer(connector.trainer)
    connector._monitel_load = Checkpoint(LOAD, checkpoint_path, logs=False) if loads else None
    return connector._monitel_load  # type: ignore[no-any-return]


def _restoring(connector: Any) -> Checkpoint | None:
    """Observe the last part of a restore: the state of loops and optimizers."""
    load: Checkpoint | None = vars(connector).pop("_monitel_load", None)
    if load is not None:
        load.logs, load.step = connector.trainer.is_global_zero, connector._loaded_checkpoint.get("global_step")
    return load


def _evaluating(loop: Any) -> Activity | None:
    """Observe an evaluation."""
    return monitel.activity("evaluation") if _observer(loop.trainer) else None
