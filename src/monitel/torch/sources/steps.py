"""Optimizer steps: their number, the time between them, and whether gradient scaling has skipped them."""

from __future__ import annotations

from contextlib import suppress
from threading import _DummyThread, current_thread
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from monitel.process.failures import call, call_each
from monitel.process.os_threads import local
from monitel.stats._window import get_step, own_add
from monitel.torch.hooks import Source
from monitel.torch.recording import DURATIONS, GuardedStat, record_step
from monitel.training.step import advance
from monitel.training.training_counters import training_counter

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from monitel.counter import Counter
    from monitel.process.os_threads import RLock
    from monitel.stats.window import Window
    from monitel.torch.boundaries.optimizer_steps import OptimizerSteps, Results
    from monitel.torch.rates import Rates
    from monitel.torch.scalars.fetcher import Fetcher


class Steps(Source):
    """Counts training steps by the steps of optimizers.

    A training step starts with the first optimizer that steps, and the next one starts when an optimizer of the current
    step steps again. So two optimizers that take turns, or one optimizer per parameter, make one step; five steps of
    one optimizer for each step of another make five. An optimizer that steps for the first time starts a new training
    step, unless the current one was started that way too: it belongs to another run, and the time between the two runs
    is not recorded as a duration.

    Each thread has its own training steps. Threads that Python did not start, such as those in which autograd runs an
    optimizer within backward, share those of the first thread that steps, and never become the training thread of
    :func:`monitel.ledger`.

    Counters: ``training.steps``, applied steps; ``training.steps.skipped``. A step of several optimizers is skipped if
    all of them skip, so it is counted when the next one starts. Stat: ``training.step.duration`` in seconds, from one
    step to the next, so from the second step on. Each step increments the process's step (:func:`monitel.set_step`),
    skipped or not.

    Args:
        window_size: Window size of the Stat in seconds.
        rates: Counts and logs the work of steps.
        fetcher: Reads the numbers of gradient scaling.
        optimizers: Reports the steps of optimizers.
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
        """Count the last step, log the last rates, and flush the Stat."""
        for each in list(self._undecided):
            each.end()
        self._fetcher.wait()
        call_each(call, (self._rates.flush, self._duration.flush))

    end = remove

    def poll(self) -> None:
        """Log the rates if a window is over."""
        self._rates.poll()

    def reset(self) -> None:
        """Discard the parent's steps. For a forked child."""
        self._rates.reset()
        self._start_empty()

    def _optimizer_stepped(self, optimizer: object, results: Results, now_ns: int) -> None:
        """Count a step of an optimizer."""
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

    Args:
        applied: Counts applied steps.
        skipped: Counts skipped steps.
        fetcher: Reads ``found_inf``.
        lock: Held while the state changes.
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
        """Add the results of one optimizer."""
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
