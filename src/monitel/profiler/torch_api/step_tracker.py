"""Step counts of a process, as the maximum over those who count."""

from __future__ import annotations

import os
from collections import defaultdict
from importlib import import_module
from typing import Any, ClassVar
from warnings import warn

from monitel.process.import_hook import AfterImport

_OPTIMIZERS = "torch.optim.optimizer"


class KinetoStepTracker:
    """Counts steps by requester, with process-wide state. No part of monitel reads the counts.

    The current step is the largest count of any requester, and never decreases. Where the environment variable
    KINETO_USE_DAEMON is set, the steps of profiles are counted, and those of torch's optimizers, as torch does.

    Example:
        >>> from monitel.profiler import KinetoStepTracker
        >>> before = KinetoStepTracker.current_step()
        >>> KinetoStepTracker.increment_step("evaluation") - before
        1
        >>> KinetoStepTracker.erase_step_count("evaluation")
        True
    """

    _current_step = 0
    _step_dict: ClassVar[dict[str, int]] = defaultdict(int)

    @classmethod
    def init_step_count(cls, requester: str) -> None:
        """Start the count of a requester at the current step."""
        cls._step_dict[requester] = cls._current_step

    @classmethod
    def erase_step_count(cls, requester: str) -> bool:
        """Delete the count of a requester, and return whether there was one. The current step is unchanged."""
        return cls._step_dict.pop(requester, None) is not None

    @classmethod
    def increment_step(cls, requester: str) -> int:
        """Count one step of a requester, and return the current step."""
        if requester not in cls._step_dict:
            cls.init_step_count(requester)
        cls._step_dict[requester] += 1
        step = max(cls._step_dict.values())
        if step > cls._current_step + 1:
            warn(
                "Profiler step count has increased more than 1 - "
                f"current_step = {cls._current_step} step dict =  {cls._step_dict}",
                stacklevel=2,
            )
        cls._current_step = max(step, cls._current_step)
        return cls._current_step

    @classmethod
    def current_step(cls) -> int:
        """Return the largest count so far."""
        return cls._current_step


def _optimizer_post_hook(optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001  torch calls it so
    """Count a step of the requester "Optimizer"."""
    KinetoStepTracker.increment_step("Optimizer")


_optimizer_post_hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled steps are counted too


def steps_are_counted() -> bool:
    """Return whether the environment asks for counts of steps."""
    return bool(os.environ.get("KINETO_USE_DAEMON"))


def count_optimizer_steps() -> None:
    """Give torch's optimizers the hook if steps are counted: now, or as soon as torch is imported."""

    def register() -> None:
        import_module(_OPTIMIZERS).register_optimizer_step_post_hook(_optimizer_post_hook)

    if steps_are_counted():
        AfterImport(_OPTIMIZERS, register)
