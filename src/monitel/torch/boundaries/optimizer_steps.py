"""Calls of ``optimizer.step()``, including those by a GradScaler."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from torch.amp import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel.profiler import ranges
from monitel.profiler.ranges import record_past
from monitel.torch.hooks import NO_GRAPH, Patch, Source, compile_only_below, current_graph, never_compile, untraced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monitel.torch.stages.cycle import TrainingThread

#: Of an optimizer's step: None if it is applied, an empty list if it is skipped, else ``found_inf`` of a fused
#: optimizer, which is not 0 if it is skipped.
Results: TypeAlias = "list[Tensor] | None"


class OptimizerSteps(Source):
    """Reports each ``optimizer.step()``, through torch's global hooks.

    Calls are reported to the thread's cycle: nested ones too, as in wrappers and subclasses; a call that raises
    never ends. Steps are reported to the listeners.

    If a ``step()`` calls another ``step()``, as in a subclass or a wrapper, torch runs its hooks for both, and only the
    innermost call is a step. A call of ``GradScaler.step()`` is one step of the optimizer, even if it is skipped.

    Range: ``training.optimizer``, recorded when the call has ended, because torch calls no hook if ``step()`` raises.

    Args:
        thread: State of each thread.

    Attributes:
        listeners: Called with each step, or skipped step, in its thread: once for all nested calls, when they have
            ended, with the optimizer, the results and the time.
        foreign_step: Called for an optimizer in a thread of autograd.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self.listeners: list[Callable[[object, Results, int], None]] = []
        self.foreign_step: Callable[[], object] = int
        self._thread = thread
        self._now = clock.reading()
        self._others: WeakValueDictionary[int, Any] = WeakValueDictionary()  # of another class, with torch's hooks

    def install(self) -> None:
        """Hook all optimizers and GradScalers, including those created later, and subclasses that call the base's step.

        torch's wrapper of ``step()`` calls the hooks. The compiler cannot trace them: it would fail at the wrapper, log
        that, and continue with ``step()`` itself. So it is configured to start there, which cannot be undone.
        """
        self._graph = current_graph()
        compile_only_below(Optimizer.profile_hook_step(lambda: None))
        for function in (self._before, self._after):
            never_compile(function)
        self._hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._scaling = Patch(GradScaler, "step", self._around_scaler)
        compile_only_below(self._scaling.replacement)

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._scaling.remove()

    @untraced
    def _before(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        thread = self._thread
        thread.entered = id(optimizer)
        if thread.scaled is None:
            self._begin(thread)

    @untraced
    def _after(self, optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        thread = self._thread
        innermost = id(optimizer) == thread.entered  # else it has called step() of another optimizer, which was counted
        thread.entered = None
        if not isinstance(optimizer, Optimizer):
            with suppress(TypeError):  # not weakly referenceable
                self._others[id(optimizer)] = optimizer
        found_inf = optimizer.__dict__.get("found_inf")  # set by GradScaler during the step of a fused optimizer
        if thread.scaled is not None:
            if innermost:
                thread.scaled.append(found_inf)
            return
        results = None if found_inf is None else [found_inf]
        self._end(thread, optimizer, results, stepped=innermost)

    def _around_scaler(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kw: Any) -> Any:
        thread = self._thread
        if thread.scaled is not None:  # a scaler within another one
            return original(scaler, optimizer, *args, **kw)
        found: list[Tensor | None] = []
        try:
            thread.scaled = found
            self._begin(thread)
            returned = original(scaler, optimizer, *args, **kw)
        finally:
            thread.scaled = None
        results = [each for each in found if each is not None]
        stepped = bool(found) or (scaler.is_enabled() and self._is_observable(optimizer))
        self._end(thread, optimizer, results if len(results) == len(found) else None, stepped=stepped)
        return returned

    def _is_observable(self, optimizer: Any) -> bool:
        """Return whether torch's hooks run for an optimizer, so that it has skipped its step if they did not."""
        return isinstance(optimizer, Optimizer) or self._others.get(id(optimizer)) is optimizer

    def _begin(self, thread: TrainingThread) -> None:
        cycle = thread.cycle
        if self._graph() == NO_GRAPH:
            if cycle is not None:
                cycle.optimizer_began(self._now())
        elif cycle is not None:
            cycle.optimizer_began_in_backward()
        else:
            self.foreign_step()

    def _end(self, thread: TrainingThread, optimizer: object, results: Results, *, stepped: bool) -> None:
        now_ns, cycle = self._now(), thread.cycle
        if cycle is not None and self._graph() == NO_GRAPH:
            if ranges.active:
                record_past("training.optimizer", max(cycle.step_ns, cycle.mark_ns), now_ns)
            cycle.optimizer_ended(now_ns)
        if stepped:
            for listener in self.listeners:
                listener(optimizer, results, now_ns)
