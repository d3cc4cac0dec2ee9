"""Optimizer steps: their number, and the time between them."""

from __future__ import annotations

from contextlib import suppress
from threading import _DummyThread, current_thread, local
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel._window import get_step, own_add
from monitel.failures import call_each
from monitel.step import advance
from monitel.torch._compat import compile_only_below, untraced
from monitel.torch.guarded_stat import DURATIONS, GuardedStat
from monitel.torch.sources.gradient_scaling import GradientScaling, StepOutcome
from monitel.torch.training_ranges import record_step
from monitel.training_counters import training_counter

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from monitel.torch.rates import Rates
    from monitel.torch.sources.gradient_scaling import Numbers, Results
    from monitel.window import Window


class Steps:
    """Counts training steps through torch's global hooks, which run around each ``optimizer.step()``.

    A training step starts with the first optimizer that steps, and the next one starts when an optimizer of the current
    step steps again. So two optimizers that take turns, or one optimizer per parameter, make one step; five steps of
    one optimizer for each step of another make five. An optimizer that steps for the first time starts a new training
    step, unless the current one was started that way too: it belongs to another run, and the time between the two runs
    is not recorded as a duration.

    Each thread has its own training steps. Threads that Python did not start, such as those in which autograd runs an
    optimizer within backward, share those of the first thread that steps, and never become the training thread of
    :func:`monitel.ledger`.

    If a ``step()`` calls another ``step()``, as in a subclass or a wrapper, torch runs its hooks for both, and only the
    innermost call is counted. A call of ``GradScaler.step()`` is one step of the optimizer, even if it is skipped.

    Counters: ``training.steps``, applied steps; ``training.steps.skipped``. A step of several optimizers is skipped if
    all of them skip, so it is counted when the next one starts. Stat: ``training.step.duration`` in seconds, from one
    step to the next, so from the second step on. Each step increments the process's step (:func:`monitel.set_step`),
    skipped or not.

    Args:
        window_size: Window size of the Stat in seconds.
        rates: Counts and logs the work of steps.
        numbers: Reads the numbers of gradient scaling.
    """

    def __init__(self, window_size: float, rates: Rates, numbers: Numbers) -> None:
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
        self._numbers = numbers
        self._scaling = GradientScaling(self._observe_scaler)
        self._now = clock.reading()
        self._known: WeakValueDictionary[int, Any] = WeakValueDictionary()  # optimizers that have stepped before
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = self._applied._lock  # one lock for all, because taking it is half of the cost
        self._thread = _Thread()
        self._shared = _Turns()
        self._owner: Thread | None = None  # the first thread that has stepped
        self._undecided: set[StepOutcome] = set()

    def install(self) -> None:
        """Hook all optimizers and GradScalers, including those created later."""
        self._numbers.open()
        self._hooks = hook_optimizers(self._before, self._after)
        self._scaling.install()

    def remove(self) -> None:
        """Remove the hooks, count the last step, log the last rates, and flush the Stat."""
        for hook in self._hooks:
            hook.remove()
        self._scaling.remove()
        for each in list(self._undecided):
            each.end()
        self._numbers.close()
        call_each(_call, (self._rates.flush, self._duration.flush))

    def poll(self) -> None:
        """Log the rates if a window is over."""
        self._rates.poll()

    def reset(self) -> None:
        """Discard the parent's steps. For a forked child."""
        self._numbers.reset()
        self._rates.reset()
        self._start_empty()

    @untraced
    def _before(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._thread.entered = id(optimizer)

    @untraced
    def _after(self, optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        thread = self._thread
        if id(optimizer) != thread.entered:  # its step() has called that of another optimizer, which was counted
            return
        thread.entered = None
        found_inf = optimizer.__dict__.get("found_inf")  # set by GradScaler during the step of a fused optimizer
        if thread.scaled is not None:
            thread.scaled.append(found_inf)
        else:
            self._count(thread, optimizer, None if found_inf is None else [found_inf])

    def _observe_scaler(self, scaler: Any, optimizer: Any, step: Callable[[], Any]) -> Any:
        thread = self._thread
        if thread.scaled is not None:  # the step() of a subclass calls that of its base
            return step()
        results: list[Tensor | None] = []
        thread.scaled = results
        try:
            returned = step()
        finally:
            thread.scaled = None
        if results or (scaler.is_enabled() and self._is_observable(optimizer)):
            found = [each for each in results if each is not None]
            self._count(thread, optimizer, found if len(found) == len(results) else None)
        return returned

    def _is_observable(self, optimizer: Any) -> bool:
        """Return whether torch's hooks run for an optimizer, so that it has skipped its step if they did not."""
        return isinstance(optimizer, Optimizer) or self._known.get(id(optimizer)) is optimizer

    def _count(self, thread: _Thread, optimizer: object, results: Results) -> None:
        """Count a step of an optimizer."""
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
                now_ns = self._now()
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
                    turns.outcome = StepOutcome(self._applied, self._skipped, self._numbers, self._lock)
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


@own_add
class StepDuration(GuardedStat):
    """A Stat that calls a function after a flush has closed a window early.

    Attributes:
        flushed: The function. Exceptions are logged, as those of event handlers.
    """

    __slots__ = ("flushed",)
    flushed: Callable[[], None]

    def _log_unguarded(self, window: Window) -> None:
        try:
            super()._log_unguarded(window)
        finally:
            if window.end_ns - window.start_ns < self._window_ns:
                self.flushed()


class _Turns:
    """The current training step of a thread.

    Attributes:
        stepped: The ids of the optimizers that have stepped in it.
        is_first: Whether an optimizer's first step started it.
        since_ns: Its start; None before the first one.
        outcome: Counts it, unless it was applied immediately.
    """

    __slots__ = ("is_first", "outcome", "since_ns", "stepped")

    def __init__(self) -> None:
        self.stepped: set[int] = set()
        self.is_first = False
        self.since_ns: int | None = None
        self.outcome: StepOutcome | None = None

    def join(self, key: int, is_new: bool) -> bool:
        """Add an optimizer that has not stepped in this step, and return True, unless it starts the next step."""
        joins = bool(self.stepped) and (self.is_first or not is_new)
        if joins:
            self.stepped.add(key)
        return joins


class _Thread(local):
    turns: _Turns | None = None
    trains: bool = True  # whether Python has started it; autograd's threads have a training thread that waits for them
    entered: int | None = None  # id of the optimizer whose step() was entered last
    scaled: list[Tensor | None] | None = None  # found_inf of the optimizers in the GradScaler.step() in progress


def _call(function: Callable[[], None]) -> None:
    function()


def hook_optimizers(before: Callable[..., Any], after: Callable[..., None]) -> list[RemovableHandle]:
    """Call ``before`` and ``after`` around each ``step()`` of all optimizers, including those created later.

    torch's wrapper of ``step()`` calls the hooks. The compiler cannot trace them: it would fail at the wrapper, log
    that, and continue with ``step()`` itself. So it is configured to start there, which cannot be undone.
    """
    compile_only_below(Optimizer.profile_hook_step(lambda: None))
    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
