"""Process groups of torch.distributed: their set-up, and the waits of the training thread for other ranks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import distributed

from monitel import clock
from monitel.torch.hooks import PackagePatch, Patch, Source, find, never_compile
from monitel.torch.recording import training_activity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.torch.cycle import Cycle

_KEY = "pytorch.wait_counter.c10d."
_SET_UPS = frozenset(_KEY + name for name in ("init_process_group", "new_group", "split_group", "shrink_group"))
_FUNCTIONS = ("_broadcast_coalesced", "monitored_barrier")  # they wait in C++


class WaitsForRanks(Source):
    """Reports to a thread's cycle its waits for other ranks, which no wait counter of torch contains.

    ``Work.wait`` is behind collectives and FSDP, ``wait_tensor`` behind functional collectives and compiled code,
    ``Future.wait`` behind RPC, ``_broadcast_coalesced`` behind the buffers of DistributedDataParallel.
    """

    def __init__(self, waiting: Callable[[], Cycle | None]) -> None:
        self._waiting = waiting
        self._now = clock.reading()

    def install(self) -> None:
        if not distributed.is_available():
            return
        package, packet = distributed.__name__, find("torch.ops", "_c10d_functional").wait_tensor
        work, store = find(package, "Work"), find(package, "Store")
        # ``_op`` of an operator is the function that runs it. Compiled code, too, calls an operator that waits through
        # this attribute, and the compiler does not look at it.
        places = [(work, "wait"), (find("torch._C", "Future"), "wait"), (store, "get"), (store, "wait")]
        places += [(packet, "_op"), (packet.default, "_op")]
        for name in _FUNCTIONS:
            never_compile(self.hook(PackagePatch(package, name, self._call)).replacement)
        for owner, name in places:
            never_compile(self.hook(Patch(owner, name, self._call)).replacement)
        never_compile(self._call)

    def _call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begin_ns = self._now()
        cycle = self._waiting()
        if cycle is None:
            return original(*args, **kwargs)
        before_ns = cycle.wait_began()
        try:
            return original(*args, **kwargs)
        finally:
            cycle.wait_ended(before_ns, self._now() - begin_ns)


class ProcessGroups(Source):
    """Counts the set-up of process groups in the training thread as ``init``, including one that raises.

    torch times these functions with wait counters. These are wrapped, so each call counts, wherever it was imported to.
    """

    def install(self) -> None:
        """The wait counter's key ends with the name of the function (torch/distributed/c10d_logger.py)."""
        find("torch.distributed.c10d_logger", "_WaitCounter")
        self.hook(PackagePatch(distributed.__name__, "init_device_mesh", _set_up))
        self.hook(Patch(sys.modules["torch.distributed.c10d_logger"], "_WaitCounter", _counter))


def _counter(original: Callable[[str], Any], key: str) -> Any:
    return _SetUp(original(key)) if key in _SET_UPS else original(key)


class _SetUp:
    def __init__(self, counter: Any) -> None:
        self._counter = counter

    @contextmanager
    def guard(self) -> Iterator[None]:
        with training_activity("init"), self._counter.guard():
            yield


def _set_up(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with training_activity("init"):
        return original(*args, **kwargs)
