"""Optimizer steps: their number, the time between them, and rates of work."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel._window import get_step, set_step
from monitel.aggregation import COUNT
from monitel.failures import call_each
from monitel.torch._compat import compile_only_below, untraced
from monitel.torch.guarded_stat import GuardedStat, duration_stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle

    from monitel.torch.sources.rates import Rates


class Steps:
    """Counts training steps through torch's global hooks, which run around each ``optimizer.step()``.

    A training step starts with the first optimizer that steps, and the next one starts when an optimizer of the current
    step steps again. So two optimizers that take turns, or one optimizer per parameter, make one step; five steps of
    one optimizer for each step of another make five. An optimizer that steps for the first time starts a new training
    step, unless the current one was started that way too: it belongs to another run, and the time between the two runs
    is not recorded as a duration.

    If a ``step()`` calls another ``step()``, as in a subclass or a wrapper, torch runs its hooks for both, and only the
    innermost call is counted.

    Stats: ``training.steps`` (COUNT), and ``training.step.duration`` in seconds, from one counted step to the next, so
    from the second step on. Each counted step increments the process's step (:func:`monitel.set_step`).

    Args:
        window_size: Window size of the Stats in seconds.
        rates: Records the work of each step; None if the user gave no numbers.
    """

    def __init__(self, window_size: float, rates: Rates | None) -> None:
        self._count = GuardedStat(
            "training.steps", [COUNT], window_size, unit="{step}", description="Optimizer steps", monotonic=True
        )
        self._duration = duration_stat("training.step.duration", "From one optimizer step to the next", window_size)
        self._rates = rates
        self._now = clock.reading()
        self._thread = _Thread()
        self._stepped: set[int] = set()  # ids of the optimizers of the current step
        self._known: WeakValueDictionary[int, Any] = WeakValueDictionary()  # optimizers that have stepped before
        self._is_first = False  # whether an optimizer's first step started the current step
        self._since_ns: int | None = None

    def install(self) -> None:
        """Hook all optimizers, including those created later."""
        self._hooks = hook_optimizers(self._before, self._after)

    def remove(self) -> None:
        """Remove the hooks and flush the Stats."""
        for hook in self._hooks:
            hook.remove()
        rates = [] if self._rates is None else self._rates.stats
        call_each(GuardedStat.flush, [self._count, self._duration, *rates])

    @untraced
    def _before(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._thread.entered = id(optimizer)

    @untraced
    def _after(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        stepped, thread, key = self._stepped, self._thread, id(optimizer)
        if key != thread.entered:  # its step() has called that of another optimizer, which was counted
            return
        thread.entered = None
        new = key not in stepped and self._known.get(key) is not optimizer
        if new:
            self._known[key] = optimizer
        if key not in stepped and stepped and (self._is_first or not new):
            stepped.add(key)
            return
        stepped.clear()
        stepped.add(key)
        self._is_first = new
        now_ns, since_ns = self._now(), None if new else self._since_ns
        self._since_ns = now_ns
        set_step((get_step() or 0) + 1)
        self._count.add(1.0)
        if since_ns is not None:
            seconds = (now_ns - since_ns) / 1e9
            self._duration.add(seconds)
            if self._rates is not None and seconds:
                self._rates.record_step(seconds)


class _Thread(local):
    entered: int | None = None  # id of the optimizer whose step() was entered last


def hook_optimizers(before: Callable[..., Any], after: Callable[..., None]) -> list[RemovableHandle]:
    """Call ``before`` and ``after`` around each ``step()`` of all optimizers, including those created later.

    torch's wrapper of ``step()`` calls the hooks. The compiler cannot trace them: it would fail at the wrapper, log
    that, and continue with ``step()`` itself. So it is configured to start there, which cannot be undone.
    """
    compile_only_below(Optimizer.profile_hook_step(lambda: None))
    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
