"""The logger and the callback for Lightning, as ``lightning`` or ``pytorch_lightning``.

The classes extend those of the packages that are imported already, or else of the one that is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import TYPE_CHECKING, Any

import monitel
from monitel import clock
from monitel.integrations import progress
from monitel.integrations.guarded import guarded
from monitel.integrations.hyperparameters import as_dict

if TYPE_CHECKING:
    from collections.abc import Callable

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
    What looks like a secret in hyperparameters is masked. Checkpoints are saved where Lightning saves them without a
    logger. Exceptions of telemetry are logged once, and never raised.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> def create_trainer():
        ...     return Trainer(logger=MonitelLogger(), callbacks=[MonitelCallback()])
    """

    name = version = ""  # no folder for checkpoints
    _recorded = ""  # the last hyperparameters

    @_utilities.rank_zero_only  # type: ignore[untyped-decorator]
    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers; by default at the step of :func:`monitel.set_step`."""
        monitel.log(metrics, step=None if step is None else int(step))

    @_utilities.rank_zero_only  # type: ignore[untyped-decorator]
    @guarded
    def log_hyperparams(self, params: Any, *_args: Any, **_kwargs: Any) -> None:
        """Record a mapping or a Namespace if it has changed. A value that raises is replaced by its exception."""
        if params is not None and str(config := as_dict(params)) != self._recorded:
            self._recorded = str(config)
            monitel.config(config)


class MonitelCallback(_Callback):  # type: ignore[misc]
    """Counts the work of each process in ``fit()``, and sets the step of the process to ``trainer.global_step``.

    * **Counters**: ``training.samples``, ``training.tokens`` if there are any, and, unless
      :func:`monitel.torch.instrument` counts them, ``training.steps``. Validation, test and prediction do not count.
    * **Stats**, in seconds: ``training.evaluation.duration`` of each validation except sanity checks, and
      ``training.checkpoint.duration``, the time for which training waits for a checkpoint.

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
        self._validates_since: int | None = None

    @guarded
    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """Time the checkpoints of a training. Lightning has no hook after a checkpoint."""
        if stage == "fit" and "save_checkpoint" not in vars(trainer):
            trainer.save_checkpoint = MethodType(save_checkpoint, trainer)  # bound, so that a copy saves its own state

    @guarded
    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Set the first step, which is that of the checkpoint after a resume."""
        self._step = trainer.global_step
        monitel.set_step(self._step)
        progress.begin(tokens=self._tokens is not _input_ids)

    @guarded
    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, batch: Any, _index: int) -> None:
        """Count a batch, and the optimizer steps since the last one."""
        before, self._step = self._step, trainer.global_step
        monitel.set_step(self._step)
        progress.count_steps(self._step - before)
        if batch is not None:
            self._count_samples(batch)
            self._count_tokens(batch)

    @guarded
    def _count_samples(self, batch: Any) -> None:
        progress.count_samples(self._samples(batch))

    @guarded
    def _count_tokens(self, batch: Any) -> None:
        progress.count_tokens(self._tokens(batch))

    @guarded
    def on_validation_start(self, trainer: Any, _module: Any) -> None:
        """Begin a validation."""
        self._validates_since = None if trainer.sanity_checking else clock.monotonic_ns()

    @guarded
    def on_validation_end(self, _trainer: Any, _module: Any) -> None:
        """Record the duration of a validation."""
        if self._validates_since is not None:
            _record("training.evaluation.duration", self._validates_since)


def _input_ids(batch: Any) -> int:
    return int(batch["input_ids"].numel()) if isinstance(batch, Mapping) and "input_ids" in batch else 0


def save_checkpoint(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Save a checkpoint as the class of the Trainer does, and record the duration."""
    since = clock.monotonic_ns()
    type(trainer).save_checkpoint(trainer, *args, **kwargs)
    _record("training.checkpoint.duration", since)


@guarded
def _record(name: str, since_ns: int) -> None:
    asked = [monitel.MEAN, monitel.COUNT, monitel.SUM, monitel.MAX, monitel.MIN]
    monitel.stat(name, asked, unit="s", monotonic=True).add((clock.monotonic_ns() - since_ns) / 1e9)
