"""Training steps: calls of ``optimizer.step()``, their number, the time between them, and skips by gradient scaling."""

from __future__ import annotations

from contextlib import suppress
from threading import _DummyThread, current_thread
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from torch.amp import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel.process.failures import call, call_each
from monitel.process.os_threads import local
from monitel.profiler import ranges
from monitel.profiler.ranges import record_past
from monitel.stats._window import get_step, own_add
from monitel.torch.hooks import NO_GRAPH, Patch, Source, compile_only_below, current_graph, never_compile, untraced
from monitel.torch.recording import DURATIONS, GuardedStat, record_step
from monitel.training.counters import training_counter
from monitel.training.step import advance

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from torch import Tensor

    from monitel.counter import Counter
    from monitel.process.os_threads import RLock
    from monitel.stats.window import Window
    from monitel.torch.cycle import TrainingThread
    from monitel.torch.devices import Fetcher
    from monitel.torch.rates import Rates

#: Of an optimizer's step: None if it is applied, an empty list if it is skipped, else ``found_inf`` of a fused
#: optimizer, which is not 0 if it is skipped.
Results: TypeAlias = "list[Tensor] | None"


class OptimizerSteps(Source):
    """Reports each ``optimizer.step()`` to the thread's cycle, and each step to the listeners, in its thread.

    If a ``step()`` calls another one, torch runs its hooks for both: the innermost call is the step.
    A call of ``GradScaler.step()`` is one step, even if it is skipped. A call that raises never ends.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self.listeners: list[Callable[[object, Results, int], None]] = []
        self.foreign_step: Callable[[], object] = int
        self._thread = thread
        self._now = clock.reading()
        self._others: WeakValueDictionary[int, Any] = WeakValueDictionary()  # of another class, with torch's hooks

    def install(self) -> None:
        """The compiler would fail at torch's wrapper of ``step()``, which calls the hooks, so it starts below.

        This stays.
        """
        self._graph = current_graph()
        compile_only_below(Optimizer.profile_hook_step(lambda: None))
        for function in (self._before, self._after):
            never_compile(function)
        self.hook(register_optimizer_step_pre_hook(self._before))
        self.hook(register_optimizer_step_post_hook(self._after))
        compile_only_below(self.hook(Patch(GradScaler, "step", self._around_scaler)).replacement)

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


class Steps(Source):
    """Counts training steps by the steps of optimizers, for each thread.

    A step starts when an optimizer of the current step steps again, or a new one, unless a new one started it too. The
    time between the steps of two runs, when a new optimizer appears, is not a duration.
    """

    def __init__(self, window_size: float, rates: Rates, fetcher: Fetcher, optimizers: OptimizerSteps) -> None:
        self.needs = (fetcher, optimizers)
        optimizers.listeners.append(self._optimizer_stepped)
        self._applied = training_counter("training.steps")
        self._skipped = training_counter("training.steps.skipped")
        self._duration = StepDuration(
            *("training.step.duration", DURATIONS, window_size),
            unit="s",
            description="From one optimizer step to the next",
            monotonic=True,
        )
        self._duration.flushed = rates.flush
        self._rates = rates
        self._fetcher = fetcher
        self._known: WeakValueDictionary[int, Any] = WeakValueDictionary()  # optimizers that have stepped before
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = self._applied._lock  # one lock for all, because taking it is half of the cost
        self._thread = _Thread()
        self._shared = _Turns()
        self._owner: Thread | None = None  # the first thread that has stepped
        self._undecided: set[StepOutcome] = set()

    def remove(self) -> None:
        for each in list(self._undecided):
            each.end()
        self._fetcher.wait()
        call_each(call, (self._rates.flush, self._duration.flush))

    end = remove

    def poll(self) -> None:
        self._rates.poll()

    def reset(self) -> None:
        self._rates.reset()
        self._start_empty()

    def _optimizer_stepped(self, optimizer: object, results: Results, now_ns: int) -> None:
        thread = self._thread
        key = id(optimizer)
        with self._lock:
            turns = thread.turns or self._first_turns()
            other = key not in turns.stepped
            new = other and self._is_new(optimizer)
            joins = other and turns.join(key, new)
            undecided = results is not None or turns.outcome is not None
            if not joins:
                if other or len(turns.stepped) > 1:
                    turns.stepped = {key}
                turns.is_first = new
                since_ns, turns.since_ns = None if new else turns.since_ns, now_ns
                if since_ns is not None:
                    record_step(since_ns, now_ns)  # before the step changes, so it has the step of the ranges within
                step = (get_step() or 0) + 1
                advance(step, take_over=thread.trains)
                if not undecided:
                    self._applied._total += 1  # as add() does
        if undecided:
            self._decide(turns, joins, results)
        if joins:
            return
        if since_ns is not None:
            self._duration.add((now_ns - since_ns) / 1e9)
        self._rates.record_step(now_ns, step)

    def _decide(self, turns: _Turns, joins: bool, results: Results) -> None:
        """Count the previous step and the current one, as far as it is known whether they are applied."""
        ended = None
        with self._lock:
            if not joins:
                ended, turns.outcome = turns.outcome, None
                if results is not None:
                    turns.outcome = StepOutcome(self._applied, self._skipped, self._fetcher, self._lock)
                    self._undecided.add(turns.outcome)
            current = turns.outcome
        if ended is not None:
            ended.end()
            self._undecided.discard(ended)
        if current is not None:
            current.add(results)
        elif not joins:
            self._applied.add()

    def _is_new(self, optimizer: object) -> bool:
        """Return whether an optimizer steps for the first time, and remember it."""
        if self._known.get(id(optimizer)) is optimizer:
            return False
        with suppress(TypeError):  # not weakly referenceable
            self._known[id(optimizer)] = optimizer
        return True

    def _first_turns(self) -> _Turns:
        """Return the turns of this thread at its first step."""
        thread = current_thread()
        turns = self._shared
        self._thread.trains = not isinstance(thread, _DummyThread)
        if self._thread.trains:
            if self._owner is not None and self._owner.is_alive():
                turns = _Turns()
            else:
                self._owner = thread
        self._thread.turns = turns
        return turns


class StepOutcome:
    """Counts one training step as applied or as skipped: it is skipped if all of its optimizers skip.

    Only steps with gradient scaling need it. Whether a fused optimizer skips is decided on its device, in the number
    ``found_inf``, which may arrive later. If it is lost, the step counts as applied.
    """

    def __init__(self, applied: Counter, skipped: Counter, fetcher: Fetcher, lock: RLock) -> None:
        self._applied = applied
        self._skipped = skipped
        self._fetcher = fetcher
        self._lock = lock
        self._missing = 0  # numbers that have not arrived
        self._ended = False
        self._counted = False

    def add(self, results: Results) -> None:
        if results is None:
            with self._lock:
                self._count(self._applied)
            return
        with self._lock:
            self._missing += len(results)
        for each in results:
            self._fetcher.read(each, self)

    def end(self) -> None:
        """End the step: no other optimizer belongs to it."""
        with self._lock:
            self._ended = True
            self._count_if_skipped()

    def resolve(self, value: float | None) -> StepOutcome:
        """Set one ``found_inf``; None if it is lost. Nothing needs to be logged afterwards."""
        with self._lock:
            self._missing -= 1
            if value:
                self._count_if_skipped()
            else:
                self._count(self._applied)
        return self

    def _log_resolved(self) -> None:
        """Do nothing: steps are counted, not logged."""

    def _count_if_skipped(self) -> None:
        if self._ended and not self._missing:
            self._count(self._skipped)

    def _count(self, counter: Counter) -> None:
        if not self._counted:
            self._counted = True
            counter.add()


@own_add
class StepDuration(GuardedStat):
    """A Stat that calls ``flushed`` after a flush has closed a window early."""

    __slots__ = ("flushed",)
    flushed: Callable[[], None]

    def _log_unguarded(self, window: Window) -> None:
        try:
            super()._log_unguarded(window)
        finally:
            if window.end_ns - window.start_ns < self._window_ns:
                self.flushed()


class _Turns:
    """The current training step of a thread."""

    __slots__ = ("is_first", "outcome", "since_ns", "stepped")

    def __init__(self) -> None:
        self.stepped: set[int] = set()  # ids of the optimizers that have stepped in it
        self.is_first = False  # whether an optimizer's first step started it
        self.since_ns: int | None = None  # its start; None before the first one
        self.outcome: StepOutcome | None = None  # counts it, unless it was applied immediately

    def join(self, key: int, is_new: bool) -> bool:
        """Add an optimizer to this step and return True, unless it starts the next step."""
        joins = bool(self.stepped) and (self.is_first or not is_new)
        if joins:
            self.stepped.add(key)
        return joins


class _Thread(local):
    turns: _Turns | None = None
    trains: bool = True  # whether Python has started it; autograd's threads have a training thread that waits for them
