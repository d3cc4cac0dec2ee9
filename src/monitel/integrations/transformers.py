"""The callback for the Trainer of transformers, which calls none when an evaluation or a checkpoint begins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

import monitel
from monitel.integrations.wrapping import guarded, record_config, this_run, wrap_class
from monitel.training.activities import Activity
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint
from monitel.training.counters import begin_counters, count_work

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_PREFIXES = ("eval", "test")  # of the Trainer's names; all other numbers are of the training


class MonitelCallback(TrainerCallback):  # type: ignore[misc]  # Any where transformers is missing
    """Records a run of the Trainer: its numbers, configuration and step, and the work of each process.

    * **Numbers**, once for the job, from its process zero: everything the Trainer logs or returns from ``predict()``,
      through :func:`monitel.log` at the Trainer's step. ``loss`` is ``train.loss``, ``eval_loss`` is ``eval.loss``.
    * **Configuration**, once for the job: the training arguments and the model's configuration, through
      :func:`monitel.config`, with what looks like a secret masked.
    * **Step** of each process (:func:`monitel.set_step`): ``state.global_step``, including after a resume.
    * **Work** of each process: the counters ``training.samples`` and ``training.tokens``, and, unless
      :func:`monitel.torch.instrument` counts them, ``training.steps`` and ``training.steps.skipped``.
    * **Activities** of each process (:func:`monitel.ledger`): ``evaluation`` (``evaluate()`` and ``predict()``, in and
      outside of ``train()``), ``checkpoint.save`` and ``checkpoint.load``.
    * **Checkpoints**, once for the job: the events ``checkpoint.saved``, ``checkpoint.loaded`` and
      ``checkpoint.failed``.

    Samples are rows of the model's input, and tokens are elements of ``input_ids``, padding included. A call of
    the model counts in training mode, with gradients, when its forward and backward have ended. Exceptions of telemetry
    are logged once, and never raised.

    Example:
        >>> from transformers import Trainer
        >>> def create_trainer(model, arguments, dataset):
        ...     return Trainer(model, arguments, train_dataset=dataset, callbacks=[MonitelCallback()])
    """

    def __init__(self) -> None:
        for make, names in _OBSERVED.items():
            for name in names:
                wrap_class(Trainer, name, partial(_of_observed, make))
        self._load: Checkpoint | None = None  # in progress
        self._recorded: tuple[Any, str] = None, ""  # the run, and the configuration
        self._hook: RemovableHandle | None = None
        self._samples = self._tokens = 0  # of the batch in progress

    @guarded
    def on_train_begin(self, args: Any, state: Any, *_: Any, model: Any = None, **__: Any) -> None:
        """Record the configuration and the first step, and begin to count."""
        monitel.set_step(state.global_step)
        self._end_load(state)
        begin_counters(tokens=_main_input(model) == "input_ids")
        self._remove_hook()  # of a training that an exception has ended
        self._hook = model.register_forward_pre_hook(self._add_batch, with_kwargs=True)
        self._record_config(args, state, model)

    @guarded
    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """Count a batch whose gradients are accumulated."""
        self._count_batch()

    @guarded
    def on_step_end(self, _args: Any, state: Any, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Count the last batch of a step and the step, and set the step of the process."""
        monitel.set_step(state.global_step)
        self._count_batch()
        skipped = ".skipped" if getattr(optimizer, "step_was_skipped", False) else ""
        count_work(f"training.steps{skipped}")

    @guarded
    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, model: Any = None, **__: Any) -> None:
        """Record numbers that the Trainer logs."""
        self._record_numbers(args, state, logs, model)

    @guarded
    def on_predict(self, args: Any, state: Any, *_: Any, metrics: Any = None, model: Any = None, **__: Any) -> None:
        """Record the numbers of ``Trainer.predict()``."""
        self._record_numbers(args, state, metrics, model)

    @guarded
    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop counting."""
        self._remove_hook()

    def _end_load(self, state: Any) -> None:
        """Log the checkpoint from which a training resumes. The Trainer loads it in several parts."""
        load, self._load = self._load, None
        if load is not None and state.is_world_process_zero:
            load.step = state.global_step
            load.log()

    def _record_numbers(self, args: Any, state: Any, numbers: Any, model: Any) -> None:
        if numbers and state.is_world_process_zero:
            if self._recorded[0] != this_run():  # evaluate() or predict() without train()
                self._record_config(args, state, model)
            monitel.log({_dotted(name): value for name, value in numbers.items()}, step=state.global_step)

    @guarded
    def _record_config(self, args: Any, state: Any, model: Any) -> None:
        if state.is_world_process_zero:
            record_config(self, {"args": args, **_model_config(model)})

    def _add_batch(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add up the batches in progress. torch.compile traces this; the sums are 0 again before the next batch."""
        if not model.training or not torch.is_grad_enabled():
            return
        for each in (kwargs.get(_main_input(model)), *kwargs.values(), *args):
            if isinstance(each, torch.Tensor) and each.dim():
                rows = each.size(0)  # a nested tensor has no shape
                self._samples += rows  # no call in between: DataParallel calls this in several threads
                break
        tokens = kwargs.get("input_ids")
        if isinstance(tokens, torch.Tensor):
            elements = tokens.numel()
            self._tokens += elements

    def _count_batch(self) -> None:
        samples, self._samples, tokens, self._tokens = self._samples, 0, self._tokens, 0
        count_work("training.samples", samples)
        count_work("training.tokens", tokens)

    def _remove_hook(self) -> None:
        self._samples = self._tokens = 0
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


INTEGRATION_TO_CALLBACK.setdefault("monitel", MonitelCallback)  # report_to="monitel"


def _main_input(model: Any) -> Any:
    return getattr(model, "main_input_name", None)


def _dotted(name: str) -> str:
    prefix, _, rest = name.partition("_")
    return f"{prefix}.{rest}" if prefix in _PREFIXES and rest else f"train.{name}"


def _model_config(model: Any) -> dict[str, Any]:
    """Return the configurations of a model and of its adapters. A model may be any module, with any attributes."""
    config: dict[str, Any] = {}
    with suppress(Exception):  # not a configuration; not a method, or of another signature
        config = {**monitel.RunConfig(model.config).config}
        config["num_parameters"] = model.num_parameters()
    adapters = getattr(model, "peft_config", {})
    return {name: found for name, found in (("model", config), ("peft", adapters)) if found}


def _of_observed(make: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    callbacks = trainer.callback_handler.callbacks
    callback = next((each for each in callbacks if isinstance(each, MonitelCallback)), None)
    # A second one, as from report_to="monitel", would record and count everything again.
    callbacks[:] = [each for each in callbacks if each is callback or not isinstance(each, MonitelCallback)]
    return None if callback is None else make(callback, trainer, *args, **kwargs)


def _evaluating(*_arguments: Any, **_options: Any) -> Activity:
    return monitel.activity("evaluation")


def _saving(_callback: Any, trainer: Any, _model: Any, trial: Any = None, *_: Any, **__: Any) -> Checkpoint:
    folder = f"{trainer._get_output_dir(trial)}/checkpoint-{trainer.state.global_step}"
    return Checkpoint(SAVE, folder, logs=trainer.is_world_process_zero(), step=trainer.state.global_step)


def _saving_model(_callback: Any, trainer: Any, output_dir: Any = None, *_: Any, **__: Any) -> Checkpoint:
    folder = trainer.args.output_dir if output_dir is None else output_dir
    logs, step = trainer.is_world_process_zero(), trainer.state.global_step
    return Checkpoint(SAVE, folder, logs=logs, step=step, others="checkpoint-")


def _beginning(callback: Any, *_arguments: Any, **_options: Any) -> None:
    """Forget the load of an earlier training, which may have failed before it began."""
    callback._load = None


def _loading_part(callback: Any, _trainer: Any, path: Any = None, *_: Any, **__: Any) -> Checkpoint | None:
    """Observe a part of a load. One that follows when the training has begun is in no event."""
    if path is not None and callback._load is None:
        callback._load = Checkpoint(LOAD, path, logs=False)
    return callback._load if path is not None else None


def _loading_best(_callback: Any, trainer: Any, *_: Any, **__: Any) -> Checkpoint:
    state = trainer.state
    step = getattr(state, "best_global_step", None)
    return Checkpoint(LOAD, state.best_model_checkpoint, logs=state.is_world_process_zero, step=step)


#: What observes methods of the Trainer. Those around a whole evaluation are first; the others serve subclasses.
_OBSERVED: dict[Callable[..., Any], tuple[str, ...]] = {
    _evaluating: ("_evaluate", "evaluate", "predict", "evaluation_loop", "prediction_loop"),
    _saving: ("_save_checkpoint",),
    _saving_model: ("save_model",),
    _loading_best: ("_load_best_model",),
    _beginning: ("train",),
    _loading_part: ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"),
}
