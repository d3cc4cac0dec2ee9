"""The tracker for accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker, on_main_process

import monitel
from monitel.integrations.guarded import guarded
from monitel.integrations.hyperparameters import as_dict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType


class MonitelTracker(GeneralTracker):  # type: ignore[misc]  # Any where accelerate is missing
    """Records the numbers and the configuration that a script passes to accelerate's trackers.

    ``accelerator.log()`` calls :func:`monitel.log`, and the ``config`` of ``accelerator.init_trackers()`` is recorded
    by :func:`monitel.config`, with what looks like a secret masked. Both do so in the main process only.
    ``accelerator.end_training()`` leaves exporters running. Exceptions are never raised into the script: the first of
    each method is logged.

    Example:
        >>> from accelerate import Accelerator
        >>> accelerator = Accelerator(log_with=MonitelTracker())
        >>> accelerator.init_trackers("project", config={"lr": 1e-4})
        >>> accelerator.log({"loss": 0.25}, step=10, log_kwargs={"monitel": {"split": "validation"}})
        >>> accelerator.end_training()
    """

    name = "monitel"
    requires_logging_directory = False

    @property
    def tracker(self) -> ModuleType:
        """The module ``monitel``."""
        return monitel

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record a configuration."""
        monitel.config(as_dict(values))

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers.

        Args:
            values: Numbers by name; names of nested mappings are joined by dots. Other values are left out.
            step: The training step; by default that of :func:`monitel.set_step`.
            **kwargs: Attributes of the numbers: str, int, float or bool.
        """
        monitel.log(values, step=step, **kwargs)
