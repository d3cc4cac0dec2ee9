"""The stages of a training step on the host: the backward of each thread, its cycles, and their durations as Stats."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, distributed
from torch.autograd.graph import GradientEdge
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.process.failures import call_each, warn_once
from monitel.profiler import ranges
from monitel.profiler.ranges import record_past
from monitel.stats.stat import Stat
from monitel.torch import hooks
from monitel.torch.cycle import STAGES, Cycle, TrainingThread
from monitel.torch.device_stages import DeviceCycle, DeviceStages
from monitel.torch.loading import BatchLoading
from monitel.torch.recording import open_range, several_ranks, stage_stat
from monitel.torch.steps import OptimizerSteps
from monitel.training import activities
from monitel.training.activities import Stage, provide_stage
from monitel.training.step import get_step

_log = logging.getLogger("monitel.torch")

_ENGINE = "_execution_engine"  # the attribute of Variable through which Python runs the engine
_ACCUMULATE = 6  # the position of the argument accumulate_grad of the engine

_WAITING = ("_broadcast_coalesced", "monitored_barrier")  # functions of torch.distributed that wait in C++
_SYNC = STAGES.index("sync")
_IDLE = 16  # cycles of other threads after which a training thread without any has ended training
_ON_DEVICE = (
    "ranks wait for each other by NCCL on their GPUs, so that a late one is not seen on the host: measure the stages "
    "there, too, by monitel.torch.instrument(sources='+stages_on_device') or MONITEL_SOURCES=+stages_on_device"
)


class Backward(hooks.Source):
    """Reports each backward to its thread's cycle: all calls pass through the object by which Python runs the engine.

    DistributedDataParallel waits for ranks in a callback that it queues on the engine. One that a hook of a root queues
    before it runs when this rank's gradients are complete. Compiled backwards, whose graphs it would enter, have none.
    """

    def __init__(self, thread: TrainingThread, start: Callable[[], Cycle]) -> None:
        self._thread = thread
        self._start = start
        self._now = clock.monotonic_ns
        self._on = False

    def install(self) -> None:
        graph = hooks.current_graph()
        self._owner = hooks.find("torch.autograd.variable", "Variable")
        base = hooks.find("torch._C", "_ImperativeEngine")
        self._engine = engine = getattr(self._owner, _ENGINE, None)
        if engine is None:
            raise hooks.Missing(f"torch.autograd.variable.Variable.{_ENGINE} does not exist")
        self._original = original = engine.run_backward
        self._without_overrides = hooks.find("torch._C", "DisableTorchFunction")
        self._on = True
        state, now = self._thread, self._now

        class TimedEngine(base):  # type: ignore[misc, valid-type]  # the compiler expects an instance of torch's class
            def run_backward(_self, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  self is the boundary
                if is_dynamo_compiling() or not self._on or not _accumulates(args, kwargs):
                    return original(*args, **kwargs)
                cycle = state.cycle
                nested = graph() != hooks.NO_GRAPH
                if cycle is None:
                    if nested:  # in a thread of autograd
                        return original(*args, **kwargs)
                    cycle = state.cycle = self._start()
                several = several_ranks() and not _is_compiled()
                if nested:
                    return self._among_ranks(cycle, True, args, kwargs) if several else original(*args, **kwargs)
                end_range = _begin_ranges(cycle, now()) if ranges.active else None
                cycle.backward_began(now())
                try:
                    return self._among_ranks(cycle, False, args, kwargs) if several else original(*args, **kwargs)
                finally:
                    if end_range is not None:
                        end_range(None, None, None)
                    cycle.backward_ended(now())
                    _end_startup()

        for function in (TimedEngine.run_backward, self._among_ranks):
            hooks.compile_only_below(function)
        for each in (several_ranks, _is_compiled, self._start, self._hook, _accumulates, _begin_ranges, _end_startup):
            hooks.never_compile(each)
        self._timed = timed = TimedEngine()
        self._queue = timed.queue_callback
        setattr(self._owner, _ENGINE, timed)

    def remove(self) -> None:
        """If somebody else has replaced the object since, it stays and only passes calls on."""
        self._on = False
        if getattr(self._owner, _ENGINE) is self._timed:
            setattr(self._owner, _ENGINE, self._engine)

    def _among_ranks(self, cycle: Cycle, nested: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        now = self._now
        moments: list[tuple[int, int]] = []  # when the own gradients were complete, and what it had waited then

        def complete() -> None:
            moments.append((now(), cycle.waited()))
            if not nested:
                cycle.gradients_complete()

        registered: list[Any] = []
        try:
            self._hook(args[0] if args else kwargs.get("tensors", ()), complete, registered)
            return self._original(*args, **kwargs)
        finally:
            end_ns = now()
            for hook in registered:
                hook.remove()
            if moments:
                complete_ns, waited_ns = moments[-1]
                cycle.waited(max(0, end_ns - complete_ns - (cycle.waited() - waited_ns)))

    def _hook(self, roots: tuple[Any, ...], complete: Callable[[], None], registered: list[Any]) -> None:
        """Have the engine call ``complete`` when the gradients are, and append the hooks of the roots."""
        queued: list[bool] = []

        def begin(*_gradients: object) -> None:
            if not queued:
                queued.append(True)
                self._queue(complete)

        if not isinstance(roots, (tuple, list)):  # the engine refuses it
            return
        with self._without_overrides():
            for root in roots:
                if isinstance(root, GradientEdge):
                    registered.append(root.node.register_prehook(begin))
                elif isinstance(root, Tensor) and root.requires_grad:
                    registered.append(root.register_hook(begin))


def _accumulates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the engine adds the gradients to those of the leaves, as backward does."""
    return bool(args[_ACCUMULATE] if len(args) > _ACCUMULATE else kwargs.get("accumulate_grad"))


def _begin_ranges(cycle: Cycle, now_ns: int) -> Callable[[None, None, None], None] | None:
    """Record the range of forward, and begin that of backward; return the function that ends it."""
    if cycle.forward_since_ns:
        record_past("training.forward", cycle.forward_since_ns, now_ns)
    return open_range("training.backward")


def _end_startup() -> None:
    """End it by the first backward: a loop without an optimizer makes no steps."""
    if activities.vacant and get_step() is None:
        activities.begin_steps()


def _is_compiled() -> bool:
    """Return whether torch compiles backward, and with it all hooks (compiled autograd)."""
    compiled = sys.modules.get(f"{hooks.COMPILER}.compiled_autograd")
    return compiled is not None and bool(getattr(compiled, "compiled_autograd_enabled", False))


class WaitsForRanks(hooks.Source):
    """Reports to a thread's cycle its waits for other ranks, which no wait counter of torch contains.

    ``Work.wait`` is behind collectives and FSDP, ``wait_tensor`` behind functional collectives and compiled code,
    ``Future.wait`` behind RPC, ``_broadcast_coalesced`` behind the buffers of DistributedDataParallel.
    """

    def __init__(self, waiting: Callable[[], Cycle | None]) -> None:
        self._waiting = waiting
        self._now = clock.monotonic_ns

    def install(self) -> None:
        if not distributed.is_available():
            return
        package, packet = distributed.__name__, hooks.find("torch.ops", "_c10d_functional").wait_tensor
        work, store = hooks.find(package, "Work"), hooks.find(package, "Store")
        # ``_op`` of an operator is the function that runs it. Compiled code, too, calls an operator that waits through
        # this attribute, and the compiler does not look at it.
        places = [(work, "wait"), (hooks.find("torch._C", "Future"), "wait"), (store, "get"), (store, "wait")]
        places += [(packet, "_op"), (packet.default, "_op")]
        for name in _WAITING:
            hooks.never_compile(self.hook(hooks.PackagePatch(package, name, self._call)).replacement)
        for owner, name in places:
            hooks.never_compile(self.hook(hooks.Patch(owner, name, self._call)).replacement)
        hooks.never_compile(self._call)

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


class Stages(hooks.Source):
    """Measures the cycles of the training thread, which is the first one that ends a cycle.

    If it has ended, or has no cycle while others have 16, the next thread takes its place.
    """

    def __init__(
        self,
        window_size: float,
        group: str | None,
        thread: TrainingThread,
        optimizers: OptimizerSteps,
        loading: BatchLoading,
        *,
        device: DeviceStages | None = None,
    ) -> None:
        self._stats = [stage_stat("training.stage.duration", each, group, window_size) for each in STAGES]
        self._adds = [each.add for each in self._stats]
        self._thread = thread
        self._optimizers = optimizers
        self._device = device
        self.needs = (WaitsForRanks(self._waiting), Backward(thread, self._start), optimizers, loading)
        self.reset()

    def reset(self) -> None:
        self._thread.cycle = None
        self._owner: Cycle | None = None
        self._newest: Cycle | None = None  # the last one that was started before there was an owner
        self._others_cycles = 0  # cycles of other threads since the last one of the owner

    def install(self) -> None:
        self._optimizers.foreign_step = self._step_elsewhere
        provide_stage(self._stage_now)

    def remove(self) -> None:
        provide_stage(None)
        self._adds = []  # a cycle that ends in another thread, or in a step under way, is too late
        call_each(Stat.flush, self._stats)

    def _start(self) -> Cycle:
        started = Cycle(self._log) if self._device is None else self._device.cycle(self._log)
        if self._owner is None:
            self._newest = started
        return started

    def _stage_now(self) -> Stage | None:
        mine = self._owner or self._newest
        found = None if mine is None or not mine.thread.is_alive() else mine.in_flight()
        if mine is None or found is None:
            return None
        name, waits, since_ns = found
        return Stage(name, waits, max(clock.monotonic_ns() - since_ns, 0), mine.thread.ident or 0)

    def _step_elsewhere(self) -> None:
        if self._owner is not None:
            self._owner.optimizer_began_in_backward()

    def _waiting(self) -> Cycle | None:
        return self._thread.cycle if several_ranks() else None

    def _log(self, mine: Cycle, stages: list[int] | None) -> None:
        logged = stages is not None and (mine is self._owner or self._takes_over(mine))
        if isinstance(mine, DeviceCycle):
            if logged and self._device is not None:
                self._device.log(mine)
            else:
                mine.cut_marks()
        if stages is None or not logged:
            return
        self._others_cycles = 0
        if not stages[_SYNC] and not several_ranks():
            del stages[_SYNC]
        for add, ns in zip(self._adds, stages, strict=False):
            add(ns / 1e9)

    def _takes_over(self, mine: Cycle) -> bool:
        """Return whether a thread becomes the training thread, because there is none, or none that trains."""
        self._others_cycles += 1
        if self._owner is None or not self._owner.thread.is_alive() or self._others_cycles > _IDLE:
            self._owner = mine
            if self._device is None and several_ranks():
                _warn_of_nccl()
            return True
        return False


def _warn_of_nccl() -> None:
    """Log once, in rank zero, what shows late ranks of a job on NCCL."""
    with suppress(Exception):
        if "nccl" in str(distributed.get_backend_config()) and distributed.get_rank() == 0:
            warn_once(_log, _ON_DEVICE)
