"""Optimizer steps: how many, how long from one to the next, and how much work that is a second."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel._window import get_step, set_step
from monitel.aggregation import COUNT
from monitel.registry import _each
from monitel.torch._compat import compile_only_below, untraced
from monitel.torch.own_stat import OwnStat
from monitel.torch.work import Work, duration_stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle


class Steps:
    """Counts training steps by torch's global hooks, which run around each ``optimizer.step()``.

    A step is counted when an optimizer is the first of its step; the next one begins when one of them steps again. So
    two optimizers that take turns, or one for each parameter, are one step, and one that steps five times while the
    other steps once makes five. One that steps for the first time begins a step, unless the one under way has begun
    like that: it is another run's, and what was between the two is no step's duration.

    Of a ``step()`` that calls another, as a subclass or a wrapper does, the innermost counts: torch runs its hooks for
    each.

    Stats: ``training.steps`` (COUNT) and ``training.step.duration`` in seconds, from one counted step to the next,
    so from the second on. The process's step (:func:`monitel.set_step`) goes up by one with each.

    Args:
        window_size: Of the Stats, seconds.
        work: What one step does, for rates; None where nobody asked.
    """

    def __init__(self, window_size: float, work: Work | None) -> None:
        self._count = OwnStat(
            "training.steps", [COUNT], window_size, unit="{step}", description="Optimizer steps", monotonic=True
        )
        self._duration = duration_stat("training.step.duration", "From one optimizer step to the next", window_size)
        self._work = work
        self._now = clock.reading()
        self._thread = _Thread()
        self._stepped: set[int] = set()  # the optimizers of the step under way
        self._known: WeakValueDictionary[int, Any] = WeakValueDictionary()  # those that have stepped
        self._first = False  # whether the step under way has begun with one that had not
        self._since_ns: int | None = None

    def install(self) -> None:
        """Hook all optimizers, those that will be made too."""
        self._hooks = hook_optimizers(self._before, self._after)

    def remove(self) -> None:
        """Hook them no more, and log what was collected."""
        for hook in self._hooks:
            hook.remove()
        rates = [] if self._work is None else self._work.stats
        _each(OwnStat.flush, [self._count, self._duration, *rates])

    @untraced
    def _before(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._thread.begun = id(optimizer)

    @untraced
    def _after(self, optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        stepped, thread, key = self._stepped, self._thread, id(optimizer)
        if key != thread.begun:  # it has called another one, which has counted
            return
        thread.begun = None
        new = key not in stepped and self._known.get(key) is not optimizer
        if new:
            self._known[key] = optimizer
        if key not in stepped and stepped and (self._first or not new):
            stepped.add(key)
            return
        stepped.clear()
        stepped.add(key)
        self._first = new
        now_ns, since_ns = self._now(), None if new else self._since_ns
        self._since_ns = now_ns
        set_step((get_step() or 0) + 1)
        self._count.add(1.0)
        if since_ns is not None:
            seconds = (now_ns - since_ns) / 1e9
            self._duration.add(seconds)
            if self._work is not None and seconds:
                self._work.done_in(seconds)


class _Thread(local):
    begun: int | None = None  # the optimizer whose step() was entered last


def hook_optimizers(before: Callable[..., Any], after: Callable[..., None]) -> list[RemovableHandle]:
    """Have both called around each ``step()`` of all optimizers, those that will be made too.

    What calls them is torch's wrapper of ``step()``. The compiler, which must not trace them, would fail at it, say so,
    and go on with the step itself; so it is told to begin there. That is for good.
    """
    compile_only_below(Optimizer.profile_hook_step(lambda: None))
    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
