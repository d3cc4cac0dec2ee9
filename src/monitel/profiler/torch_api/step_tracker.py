"""The step that the whole process is at, as the maximum over who counts."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from typing import Any, ClassVar
from warnings import warn


class KinetoStepTracker:
    """Counts steps by requester: torch's class of this name, which has no other state than the process's.

    The step is the largest count of any requester, and never falls. A profile counts as "ProfilerStep".

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
        """Let a requester count, from the current step on."""
        cls._step_dict[requester] = cls._current_step

    @classmethod
    def erase_step_count(cls, requester: str) -> bool:
        """Forget a requester; whether it was known. The step stays."""
        return cls._step_dict.pop(requester, None) is not None

    @classmethod
    def increment_step(cls, requester: str) -> int:
        """Count one step of a requester; the current step."""
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
        """The largest count that there was."""
        return cls._current_step


def _optimizer_post_hook(optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001  torch calls it so
    """Count a step of any optimizer, as torch's hook of this name does: two optimizers count twice."""
    KinetoStepTracker.increment_step("Optimizer")


def install_optimizer_hook() -> None:
    """Count optimizer steps where KINETO_USE_DAEMON is set and torch is loaded, as torch.profiler does on import."""
    optimizer = sys.modules.get("torch.optim.optimizer")
    if daemon() and optimizer is not None:
        optimizer.register_optimizer_step_post_hook(_optimizer_post_hook)


def daemon() -> bool:
    """Whether the environment asks for steps to be counted (KINETO_USE_DAEMON)."""
    return bool(os.environ.get("KINETO_USE_DAEMON"))
