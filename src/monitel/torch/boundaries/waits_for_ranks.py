"""Waits of the training thread for other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

from monitel import clock
from monitel.torch.hooks import PackagePatch, Patch, Source, find, never_compile

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.stages.cycle import Cycle

_FUNCTIONS = ("_broadcast_coalesced", "monitored_barrier")  # they wait in C++


class WaitsForRanks(Source):
    """Reports to a thread's cycle its waits for other ranks, which no wait counter of torch contains.

    * ``Work.wait`` is behind collectives, barriers, object collectives, point-to-point operations and FSDP;
    * ``wait_tensor`` behind functional collectives, DTensors and tensor parallel, including compiled code;
    * ``Future.wait`` behind RPC, and the futures of collectives;
    * ``_broadcast_coalesced`` behind the buffers of DistributedDataParallel;
    * ``monitored_barrier``, ``Store.get`` and ``Store.wait`` are called by the job.

    A wait may contain another one: the cycle receives both. Errors and timeouts of a wait are passed on.

    Args:
        waiting: Called at the begin of a wait, in its thread: returns its cycle; None if its waits do not count.
    """

    def __init__(self, waiting: Callable[[], Cycle | None]) -> None:
        self._waiting = waiting
        self._now = clock.reading()
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Wrap what waits; raise Missing if this version of torch lacks a part of it."""
        if not distributed.is_available():
            return
        package, packet = distributed.__name__, find("torch.ops", "_c10d_functional").wait_tensor
        work, store = find(package, "Work"), find(package, "Store")
        # ``_op`` of an operator is the function that runs it. Compiled code, too, calls an operator that waits through
        # this attribute, and the compiler does not look at it.
        places = [(work, "wait"), (find("torch._C", "Future"), "wait"), (store, "get"), (store, "wait")]
        places += [(packet, "_op"), (packet.default, "_op")]
        try:
            for name in _FUNCTIONS:
                self._patches.append(PackagePatch(package, name, self._call))
            for owner, name in places:
                self._patches.append(Patch(owner, name, self._call))
        except BaseException:
            self.remove()
            raise
        never_compile(self._call)
        for each in self._patches:
            never_compile(each.replacement)

    def remove(self) -> None:
        """Restore what was wrapped."""
        for each in reversed(self._patches):
            each.remove()
        self._patches = []

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
