"""The activities ``data`` and ``init`` of the ledger: waits for batches, and set-up of process groups."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import distributed

from monitel.torch.hooks import PackagePatch, Patch, Source, find
from monitel.torch.recording import training_activity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.torch.boundaries.batch_loading import BatchLoading

_INCLUDE_DATA = frozenset(("evaluation", "checkpoint.save", "checkpoint.load"))  # activities
_KEY = "pytorch.wait_counter.c10d."
_SET_UPS = frozenset(_KEY + name for name in ("init_process_group", "new_group", "split_group", "shrink_group"))


class DataActivity(Source):
    """Counts waiting for batches as the activity ``data``, in the training thread.

    The end of an epoch counts too, and so does the start of workers. Within an evaluation or a checkpoint the time
    stays part of that activity.

    Args:
        loading: Makes requests for batches.
    """

    def __init__(self, loading: BatchLoading) -> None:
        self.needs = (loading,)
        self._loading = loading

    def install(self) -> None:
        """Run each request in the activity."""
        self._loading.activity = partial(training_activity, "data", part_of=_INCLUDE_DATA)

    def remove(self) -> None:
        """Run requests in no activity."""
        self._loading.activity = nullcontext


class ProcessGroups(Source):
    """Counts the set-up of process groups in the training thread as ``init``, including one that raises.

    torch times ``init_process_group``, ``new_group``, ``split_group`` and ``shrink_group`` with wait counters. These
    are wrapped, so the functions stay as they are, and each call is counted, wherever its name was imported to.
    ``init_device_mesh`` is replaced in torch's modules; imported elsewhere before, only its new groups are counted.
    """

    def install(self) -> None:
        """Wrap the wait counter, whose key ends with the name of the function (torch/distributed/c10d_logger.py)."""
        find("torch.distributed.c10d_logger", "_WaitCounter")
        self._mesh = PackagePatch(distributed.__name__, "init_device_mesh", _set_up)
        self._counter = Patch(sys.modules["torch.distributed.c10d_logger"], "_WaitCounter", _counter)

    def remove(self) -> None:
        """Restore the wait counter."""
        self._counter.remove()
        self._mesh.remove()


def _counter(original: Callable[[str], Any], key: str) -> Any:
    return _SetUp(original(key)) if key in _SET_UPS else original(key)


class _SetUp:
    """Takes the place of the wait counter of one call."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Return a context manager around the call."""
        with training_activity("init"), self._counter.guard():
            yield


def _set_up(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with training_activity("init"):
        return original(*args, **kwargs)
