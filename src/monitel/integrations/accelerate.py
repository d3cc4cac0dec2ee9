"""The tracker for accelerate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process

import monitel
from monitel.attributes import checked_attributes
from monitel.integrations.wrapping import guarded, step_of, wrap_class
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint


class MonitelTracker(GeneralTracker):  # type: ignore[misc]  # Any where accelerate is missing
    """Records what a script passes to accelerate's trackers, and the checkpoints that accelerate saves and loads.

    Pass an instance to the Accelerator, or register the class and pass its name, ``log_with="monitel"``.

    ``accelerator.log()`` calls :func:`monitel.log`, and the ``config`` of ``accelerator.init_trackers()`` is recorded
    by :func:`monitel.config`, with what looks like a secret masked. Both do so in the main process only, unless
    ``main_process_only`` is False.
    ``save_state()``, ``save_model()`` and ``load_state()`` of the Accelerators that have this tracker are the
    activities ``checkpoint.save`` and ``checkpoint.load`` of :func:`monitel.ledger` in each process, and the main
    process logs the events ``checkpoint.saved``, ``checkpoint.loaded`` and ``checkpoint.failed``.
    ``accelerator.end_training()`` leaves exporters running. Exceptions are never raised into the script: the first of
    each method is logged.

    Args:
        run_name: The project's name, which accelerate passes.
        **kwargs: Attributes of all numbers, as in ``init_trackers(..., init_kwargs={"monitel": {"fold": 3}})``.

    Raises:
        TypeError: An attribute that is not a str, int, float or bool.

    Example:
        >>> from accelerate import Accelerator
        >>> accelerator = Accelerator(log_with=MonitelTracker())
        >>> accelerator.init_trackers("project", config={"lr": 1e-4})
        >>> accelerator.log({"loss": 0.25}, step=10, log_kwargs={"monitel": {"split": "validation"}})
        >>> accelerator.end_training()
    """

    name = "monitel"
    requires_logging_directory = False

    def __init__(self, run_name: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = dict(checked_attributes(kwargs))
        wrap_class(Accelerator, "save_state", _saving_state)
        wrap_class(Accelerator, "save_model", _saving_model)
        wrap_class(Accelerator, "load_state", _loading_state)

    @property
    def tracker(self) -> ModuleType:
        """The module ``monitel``."""
        return monitel

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record a configuration."""
        monitel.config(values)

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers.

        Args:
            values: Numbers by name; names of nested mappings are joined by dots. Other values are left out.
            step: The training step; by default, and in place of a wrong one, that of :func:`monitel.set_step`.
            **kwargs: Attributes of the numbers: str, int, float or bool.
        """
        monitel.log(values, step=step_of(step), **{**self.init_kwargs, **kwargs})


def _is_observed(accelerator: Any) -> bool:
    return any(isinstance(each, MonitelTracker) for each in (*accelerator.trackers, *accelerator.log_with))


def _saving_state(accelerator: Any, output_dir: Any = None, *_: Any, **__: Any) -> Checkpoint | None:
    return _state(SAVE, output_dir, accelerator, accelerator.register_save_state_pre_hook)


def _loading_state(accelerator: Any, input_dir: Any = None, *_: Any, **__: Any) -> Checkpoint | None:
    return _state(LOAD, input_dir, accelerator, accelerator.register_load_state_pre_hook)


def _state(activity: str, path: Any, accelerator: Any, register: Callable[..., Any]) -> Checkpoint | None:
    """Observe a checkpoint whose folder accelerate may choose: its hooks are called with the folder."""
    if not _is_observed(accelerator):
        return None
    state = Checkpoint(activity, path, logs=accelerator.is_main_process)
    hook = register(lambda *arguments: setattr(state, "path", arguments[-1]))
    state.ended = lambda _state, _error: hook.remove()
    return state


def _saving_model(accelerator: Any, _model: Any, save_directory: Any, *_: Any, **__: Any) -> Checkpoint | None:
    return Checkpoint(SAVE, save_directory, logs=accelerator.is_main_process) if _is_observed(accelerator) else None
