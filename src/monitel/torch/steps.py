"""Training steps: calls of ``optimizer.step()``, the time between them, skips by gradient scaling, rates of work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Thread, _DummyThread, current_thread
from typing import Any, TypeAlias
from weakref import ref

from torch import Tensor
from torch.amp import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel.counter import Counter, find_counter
from monitel.logged_numbers import log
from monitel.process.failures import call, call_each, warn_once
from monitel.process.os_threads import RLock, local
from monitel.profiler import ranges
from monitel.profiler.ranges import Track, record_past
from monitel.stats._window import get_step, own_add
from monitel.stats.definition import window_length_ns
from monitel.stats.window import Window
from monitel.torch.cycle import TrainingThread
from monitel.torch.devices import Fetcher
from monitel.torch.hooks import NO_GRAPH, Patch, Source, compile_only_below, current_graph, never_compile, untraced
from monitel.torch.recording import DURATIONS, GuardedStat
from monitel.training.counters import training_counter
from monitel.training.step import advance

Amount = float | Callable[[], float]
Mark = tuple[int, int | None, dict[str, float]]  # time, step, and totals by the rate's name

_log = logging.getLogger("monitel.torch")
_COUNTERS = [(name, f"{name}.rate") for name in ("training.samples", "training.tokens")]

#: Whether an optimizer has skipped its step. A fused one decides on its device, by ``found_inf``, which is then not 0.
Skipped: TypeAlias = "bool | Tensor"


class OptimizerSteps(Source):
    """Reports each ``optimizer.step()`` to the thread's cycle, and each step to the listeners, in its thread.

    If a ``step()`` calls another one, torch runs its hooks for both: the innermost call is the step. A call of
    ``GradScaler.step()`` is one step, even if it is skipped. A call that raises never ends.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self.listeners: list[Callable[[object, Skipped, int], None]] = []
        self.foreign_step: Callable[[], object] = int  # called for an optimizer in a thread of autograd
        self._thread = thread
        self._now = clock.monotonic_ns

    def install(self) -> None:
        """Have the compiler start below torch's wrapper of ``step()``, which calls the hooks: it would fail there."""
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
        found_inf = optimizer.__dict__.get("found_inf")  # set by GradScaler during the step of a fused optimizer
        if thread.scaled is None:
            self._end(thread, optimizer, False if found_inf is None else found_inf, stepped=innermost)
        elif innermost:
            thread.scaled.append(found_inf)

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
        skipped: Skipped = not found
        if found and (found_inf := found[0]) is not None:
            skipped = found_inf
        stepped = bool(found) or (scaler.is_enabled() and isinstance(optimizer, Optimizer))  # others may have no hooks
        self._end(thread, optimizer, skipped, stepped=stepped)
        return returned

    def _begin(self, thread: TrainingThread) -> None:
        cycle = thread.cycle
        if self._graph() == NO_GRAPH:
            if cycle is not None:
                cycle.optimizer_began(self._now())
        elif cycle is not None:
            cycle.optimizer_began_in_backward()
        else:
            self.foreign_step()

    def _end(self, thread: TrainingThread, optimizer: object, skipped: Skipped, *, stepped: bool) -> None:
        now_ns, cycle = self._now(), thread.cycle
        if cycle is not None and self._graph() == NO_GRAPH:
            if ranges.active:
                record_past("training.optimizer", max(cycle.step_ns, cycle.mark_ns), now_ns)
            cycle.optimizer_ended(now_ns)
        if stepped:
            for listener in self.listeners:
                listener(optimizer, skipped, now_ns)


class Steps(Source):
    """Counts training steps by the steps of optimizers, for each thread.

    An optimizer that has stepped in the current step starts the next one; others join the current step. An optimizer
    that has never stepped joins only a step that such an optimizer has started, and of which one still exists; else it
    starts a step of another run, so that the time since the step before is not a duration.
    """

    def __init__(self, options: Mapping[str, Any], fetcher: Fetcher, optimizers: OptimizerSteps) -> None:
        self.needs = (fetcher, optimizers)
        optimizers.listeners.append(self._optimizer_stepped)
        self._applied = training_counter("training.steps")
        self._skipped = training_counter("training.steps.skipped")
        self._duration = StepDuration(
            *("training.step.duration", DURATIONS, options["window_size"]),
            unit="s",
            description="From one optimizer step to the next",
            monotonic=True,
        )
        self._rates = Rates(options)
        self._duration.flushed = self._rates.flush
        self._fetcher = fetcher
        self._known: dict[int, ref[object]] = {}  # by id, the optimizers that have stepped before
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = RLock()
        self._thread = _Thread()
        self._shared = _CurrentStep()
        self._owner: Thread | None = None  # the first thread that has stepped

    def remove(self) -> None:
        self._fetcher.wait()
        call_each(call, (self._rates.flush, self._duration.flush))

    end = remove

    def poll(self) -> None:
        self._rates.poll()

    def reset(self) -> None:
        self._rates.reset()
        self._start_empty()

    def _optimizer_stepped(self, optimizer: object, skipped: Skipped, now_ns: int) -> None:
        thread = self._thread
        with self._lock:
            current = thread.current or self._current_of_thread()
            other = id(optimizer) not in current.stepped
            exists = not self._known.keys().isdisjoint(current.stepped)  # one of the current step
            new = self._is_new(optimizer, other)
            other = other or new
            if other and exists and (current.by_new or not new):  # it joins the step
                current.stepped.add(id(optimizer))
                return
            if other or len(current.stepped) > 1:
                current.stepped = {id(optimizer)}
            current.by_new = new
            since_ns = None if new else current.since_ns
            current.since_ns = now_ns
            if since_ns is not None and ranges.active:  # before the step changes, so it has that of the ranges within
                record_past("training.step", since_ns, now_ns, track=thread.track())
            step = (get_step() or 0) + 1
            advance(step, take_over=thread.trains)
        if isinstance(skipped, Tensor):
            self._fetcher.read(skipped, self)
        else:
            (self._skipped if skipped else self._applied).add()
        if since_ns is not None:
            self._duration.add((now_ns - since_ns) / 1e9)
        self._rates.record_step(now_ns, step)

    def resolve(self, value: float | None) -> Steps:
        """Count a step by its ``found_inf``; as applied if that is lost."""
        (self._skipped if value else self._applied).add()
        return self

    def _log_resolved(self) -> None:
        """Do nothing: steps are counted, not logged."""

    def _is_new(self, optimizer: object, other: bool) -> bool:
        """Return whether an optimizer steps for the first time, and remember it. Ids of optimizers are reused."""
        key, known = id(optimizer), self._known
        if (found := known.get(key)) is not None and found() is optimizer:
            return False
        try:
            known[key] = ref(optimizer, lambda _: known.pop(key, None))
        except TypeError:  # not weakly referenceable
            return other
        return True

    def _current_of_thread(self) -> _CurrentStep:
        """Return the current step of this thread, at its first one; threads of autograd share that of the trainer."""
        thread = current_thread()
        current = self._shared
        self._thread.trains = not isinstance(thread, _DummyThread)
        if self._thread.trains:
            if self._owner is not None and self._owner.is_alive():
                current = _CurrentStep()
            else:
                self._owner = thread
        self._thread.current = current
        return current


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


class _CurrentStep:
    """The current training step of a thread."""

    __slots__ = ("by_new", "since_ns", "stepped")

    def __init__(self) -> None:
        self.stepped: set[int] = set()  # ids of the optimizers that have stepped in it
        self.by_new = False  # whether an optimizer that had never stepped started it
        self.since_ns: int | None = None  # its start; None before the first one


class _Thread(local):
    current: _CurrentStep | None = None
    trains: bool = True  # whether Python has started it; autograd's threads have a training thread that waits for them
    _track: Track | None = None

    def track(self) -> Track:
        """Return the track of this thread's steps: ranges of the user often begin in one step and end in the next."""
        if self._track is None:
            thread = ranges._track_of_thread()
            self._track = Track(thread.thread_id, thread.thread_name, "steps")
        return self._track


class Rates:
    """Counts the work of training steps, and logs it per second of wall time, once per window.

    A rate reaches from the last step of the previous window to the last one of its window, or to the end without one.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._flops = Counter("training.flops", "", "", {})
        self._peak_flops: float | None = options["peak_flops"]
        self._amounts: list[tuple[str, Amount, Counter]] = []
        for work in ("samples", "tokens", "flops"):
            if (amount := options[f"{work}_per_step"]) is not None:
                counter = self._flops if work == "flops" else training_counter(f"training.{work}")
                exact = amount if callable(amount) or amount % 1 else int(amount)
                self._amounts.append((f"{work}_per_step", exact, counter))
        self._now = clock.monotonic_ns
        self._window_ns = window_length_ns(options["window_size"])
        self.reset()

    def reset(self) -> None:
        self._flops._reset()
        self._lock = RLock()  # of the attributes; not held while rates are logged
        self._since: Mark | None = None  # end of the last interval
        self._last: Mark | None = None  # end of the last step
        self._due_ns = self._now() + self._window_ns

    def record_step(self, now_ns: int, step: int) -> None:
        for name, amount, counter in self._amounts:
            try:
                counter.add(amount() if callable(amount) else amount)
            except Exception:
                message = "%s failed: a step's amount is not counted (further failures are not logged)"
                warn_once(_log, message, name, key=name, exc_info=True)
        self._last = self._mark(now_ns, step)
        if self._since is None:
            with self._lock:
                self._since = self._since or self._last

    def poll(self) -> None:
        """Log the rates if a window is over."""
        with self._lock:
            now_ns = self._now()
            if now_ns < self._due_ns:
                return
            self._due_ns += (now_ns - self._due_ns) // self._window_ns * self._window_ns + self._window_ns
        since = self._since
        if not self._log_until(self._last) and since is not None and now_ns - since[0] >= self._window_ns:
            self._log_until(self._mark(now_ns, get_step()))

    def flush(self) -> None:
        """Log the rates up to the last step, if one has ended since the rates were logged."""
        self._log_until(self._last)

    def _mark(self, now_ns: int, step: int | None) -> Mark:
        totals = {}
        for name, rate in _COUNTERS:
            if (found := find_counter(name)) is not None:
                totals[rate] = found._total
        if self._peak_flops is not None:
            totals["training.mfu"] = self._flops._total / self._peak_flops
        return now_ns, step, totals

    def _log_until(self, until: Mark | None) -> bool:
        """Log the rates from the last interval's end to a mark, unless it is not later; return whether it is."""
        with self._lock:
            since = self._since
            if since is None or until is None or until[0] <= since[0]:
                return False
            self._since = until
        (since_ns, _, before), (until_ns, step, totals) = since, until
        seconds = (until_ns - since_ns) / 1e9
        if totals:  # a counter may be newer than the interval
            log({name: (total - before.get(name, 0)) / seconds for name, total in totals.items()}, step=step)
        return True
