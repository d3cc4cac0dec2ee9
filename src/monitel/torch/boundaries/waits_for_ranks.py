"""Waits of the training thread for other ranks."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import distributed

from monitel import clock
from monitel.torch._compat import never_compile, places_that_wait, untraced
from monitel.torch.function_wrapper import FunctionWrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.stages.cycle import Cycle

    #: Returns the cycle of the calling thread; None if its waits do not count.
    Waiting: TypeAlias = Callable[[], "Cycle | None"]

_FUNCTIONS = ("_broadcast_coalesced", "monitored_barrier")  # they wait in C++


class WaitsForRanks:
    """Reports to a thread's cycle its waits for other ranks, which no wait counter of torch contains.

    * ``Work.wait`` is behind collectives, barriers, object collectives, point-to-point operations and FSDP;
    * ``wait_tensor`` behind functional collectives, DTensors and tensor parallel, including compiled code;
    * ``Future.wait`` behind RPC, and the futures of collectives;
    * ``_broadcast_coalesced`` behind the buffers of DistributedDataParallel;
    * ``monitored_barrier``, ``Store.get`` and ``Store.wait`` are called by the job.

    A wait may contain another one: the cycle receives both. Errors and timeouts of a wait are passed on.

    Args:
        waiting: Called at the begin of a wait, in its thread.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._now = clock.reading()
        self._functions: list[FunctionWrapper] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, original, wrapper
        self._on = False

    def install(self) -> None:
        """Wrap what waits; raise Missing if this version of torch lacks a part of it."""
        if not distributed.is_available():
            return
        places = places_that_wait()
        self._functions = [FunctionWrapper(distributed.__name__, name, self._call) for name in _FUNCTIONS]
        never_compile(self._call)
        self._on = True
        for owner, name in places:
            original = getattr(owner, name)
            wrapper = self._wrap(original)
            setattr(owner, name, wrapper)
            self._replaced.append((owner, name, original, wrapper))

    def remove(self) -> None:
        """Restore what was wrapped. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        for owner, name, original, wrapper in self._replaced:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)
        for each in self._functions:
            each.remove()
        self._replaced, self._functions = [], []

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @untraced
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            return self._call(original, args, kwargs) if self._on else original(*args, **kwargs)

        never_compile(wait)
        return wait

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begin_ns = self._now()
        cycle = self._waiting()
        if cycle is None:
            return original(*args, **kwargs)
        before_ns = cycle.wait_began()
        try:
            return original(*args, **kwargs)
        finally:
            cycle.wait_ended(before_ns, self._now() - begin_ns)
