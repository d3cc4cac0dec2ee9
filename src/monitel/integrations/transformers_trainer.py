"""Evaluations and checkpoints of the Trainer of transformers, which calls no callback when they begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import Trainer

import monitel
from monitel.checkpoints import LOAD, SAVE, Checkpoint
from monitel.integrations.wrapping import wrap_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel._activities import Activity

# The methods around a whole evaluation first; the others serve subclasses that replace these.
_EVALUATIONS = ("_evaluate", "evaluate", "predict", "evaluation_loop", "prediction_loop")
_PARTS_OF_LOAD = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler")


def observe(kind: type) -> None:
    """Observe each Trainer that has a callback of this class. Idempotent."""

    def of_observed(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            callbacks = trainer.callback_handler.callbacks
            callback = next((each for each in callbacks if isinstance(each, kind)), None)
            return None if callback is None else make(callback, trainer, *args, **kwargs)

        made.__qualname__ = make.__qualname__
        return made

    for name in _EVALUATIONS:
        wrap_class(Trainer, name, of_observed(_evaluating))
    wrap_class(Trainer, "_save_checkpoint", of_observed(_saving))
    wrap_class(Trainer, "save_model", of_observed(_saving_model))
    wrap_class(Trainer, "_load_best_model", of_observed(_loading_best))
    wrap_class(Trainer, "train", of_observed(_beginning))
    for name in _PARTS_OF_LOAD:
        wrap_class(Trainer, name, of_observed(_loading_part))
    wrap_class(Trainer, "_load_rng_state", of_observed(_loading_random_states))


def end_load(callback: Any, state: Any) -> None:
    """Log the checkpoint from which a training resumes. The Trainer loads it in several parts."""
    load, callback._load = callback._load, None
    if load is not None and state.is_world_process_zero:
        load.step = state.global_step
        load.log()


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
    """Forget the load of a training that has failed before it began."""
    callback._load = None


def _loading_part(callback: Any, _trainer: Any, path: Any = None, *_: Any, **__: Any) -> Checkpoint | None:
    if path is not None and callback._load is None:
        callback._load = Checkpoint(LOAD, path, logs=False)
    return callback._load if path is not None else None


def _loading_random_states(_callback: Any, _trainer: Any, path: Any = None, *_: Any, **__: Any) -> Checkpoint | None:
    """Observe the part of a load that may follow when the training has begun. It has no event."""
    return None if path is None else Checkpoint(LOAD, path, logs=False)


def _loading_best(_callback: Any, trainer: Any, *_: Any, **__: Any) -> Checkpoint:
    state = trainer.state
    step = getattr(state, "best_global_step", None)
    return Checkpoint(LOAD, state.best_model_checkpoint, logs=state.is_world_process_zero, step=step)
