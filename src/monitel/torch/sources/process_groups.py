"""The activity ``init``: set-up of process groups of torch.distributed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import distributed

from monitel.torch._compat import group_timers
from monitel.torch.function_wrapper import FunctionWrapper
from monitel.torch.thread_activity import training_activity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEY = "pytorch.wait_counter.c10d."
_SET_UPS = frozenset(_KEY + name for name in ("init_process_group", "new_group", "split_group", "shrink_group"))


class ProcessGroups:
    """Counts the set-up of process groups in the training thread as ``init``, including one that raises.

    torch times ``init_process_group``, ``new_group``, ``split_group`` and ``shrink_group`` with wait counters. These
    are wrapped, so the functions stay as they are, and each call is counted, wherever its name was imported to.
    ``init_device_mesh`` is replaced in torch's modules; imported elsewhere before, only its new groups are counted.
    """

    def install(self) -> None:
        """Wrap the wait counter."""
        self._module = group_timers()
        self._mesh = FunctionWrapper(distributed.__name__, "init_device_mesh", _set_up)
        self._original = original = self._module._WaitCounter
        self._on = True

        def counter(key: str) -> Any:
            return _SetUp(original(key)) if self._on and key in _SET_UPS else original(key)

        self._counter = self._module._WaitCounter = counter

    def remove(self) -> None:
        """Restore the wait counter. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        if self._module._WaitCounter is self._counter:
            self._module._WaitCounter = self._original
        self._mesh.remove()


class _SetUp:
    """Takes the place of the wait counter of one call."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Return a context manager around the call."""
        with training_activity("init"), self._counter.guard():
            yield


def _set_up(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with training_activity("init"):
        return original(*args, **kwargs)
