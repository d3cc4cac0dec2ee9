"""Durations of forward, backward and optimizer on the host."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

from torch import autograd
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.failures import call_each
from monitel.profiler.ranges import record_past
from monitel.stats import Stat
from monitel.torch._compat import backward_under_way, compile_only_below, untraced
from monitel.torch.guarded_stat import duration_stat
from monitel.torch.sources.forward import Forward
from monitel.torch.sources.steps import hook_optimizers
from monitel.torch.training_ranges import open_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_OPTIMIZER = "training.optimizer"


class Phases:
    """Measures the phases of a training step on the host.

    Stats in seconds: ``training.forward.duration``, ``training.backward.duration``, ``training.optimizer.duration``.
    Ranges: ``training.forward``, ``training.backward``, ``training.optimizer``. The range of the optimizer is recorded
    when ``step()`` has returned, because torch calls no hook after an exception: a range that is open would stay open.
    If there is a closure, each part of ``step()`` before, between and after its calls is a range.

    On a GPU, where work is queued, these durations are the time to queue it, plus the time to wait if the queue is
    full. A backward within another one, as in a checkpoint, is part of the outer one. If an optimizer's ``step()``
    calls another ``step()``, the innermost call is measured. Its closure, which runs forward and backward, is not
    included. Forward is measured for one model only, because torch's global module hooks would run for each layer.

    Args:
        window_size: Window size of the Stats in seconds.
        model: The model whose forward is measured, or None.
    """

    def __init__(self, window_size: float, model: nn.Module | None) -> None:
        self._now = clock.reading()
        self._forward_stat = duration_stat("training.forward.duration", "The model's forward", window_size)
        self._forward = None if model is None else Forward(self._forward_stat, model)
        self._backward = duration_stat("training.backward.duration", "Backward", window_size)
        self._optimizer = duration_stat("training.optimizer.duration", "optimizer.step()", window_size)
        self._on = False
        self._thread = _Thread()

    def install(self) -> None:
        """Hook optimizers, wrap ``torch.autograd.backward``, which ``Tensor.backward`` calls, and wrap the model."""
        is_within = backward_under_way()
        self._hooks = hook_optimizers(self._before_optimizer, self._after_optimizer)
        if self._forward is not None:
            self._forward.install()
        self._original = original = autograd.backward
        self._on = True
        add, now = self._backward.add, self._now

        def timed_backward(*args: Any, **kwargs: Any) -> None:
            if is_dynamo_compiling() or not self._on or is_within():
                original(*args, **kwargs)
                return
            end_range = open_range("training.backward")
            begin_ns = now()
            try:
                original(*args, **kwargs)
                seconds = (now() - begin_ns) / 1e9
            finally:
                if end_range is not None:
                    end_range(None, None, None)
            add(seconds)

        compile_only_below(timed_backward)
        self._timed = timed_backward
        autograd.backward = timed_backward

    def remove(self) -> None:
        """Remove hooks and wrappers, and flush. If somebody else has wrapped a wrapper since, it stays."""
        self._on = False
        for hook in self._hooks:
            hook.remove()
        if autograd.backward is self._timed:
            autograd.backward = self._original
        if self._forward is not None:
            self._forward.remove()
        call_each(Stat.flush, [self._forward_stat, self._backward, self._optimizer])

    @untraced
    def _before_optimizer(self, _optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = self._thread
        thread.closures_ns = 0
        thread.since_ns = thread.part_ns = self._now()
        if len(args) > 1:  # args[0] is the optimizer
            return (args[0], self._timed_closure(args[1]), *args[2:]), kwargs
        if "closure" in kwargs:
            return args, {**kwargs, "closure": self._timed_closure(kwargs["closure"])}
        return None

    @untraced
    def _after_optimizer(self, *_call: object) -> None:
        thread = self._thread
        if thread.since_ns is not None:
            now_ns = self._now()
            record_past(_OPTIMIZER, thread.part_ns, now_ns)
            self._optimizer.add((now_ns - thread.since_ns - thread.closures_ns) / 1e9)
            thread.since_ns = None

    def _timed_closure(self, closure: Any) -> Any:
        """Wrap a closure to measure it, unless an enclosing ``step()`` has done so already."""
        if not callable(closure) or isinstance(closure, _Closure):
            return closure
        return _Closure(closure, self._now, self._thread)


class _Thread(local):
    since_ns: int | None = None  # start of the optimizer step in progress
    part_ns = 0  # start of its current part, between two calls of the closure
    closures_ns = 0  # time spent in its closures


class _Closure:
    def __init__(self, closure: Callable[[], Any], now: Callable[[], int], thread: _Thread) -> None:
        self._closure = closure
        self._now = now
        self._thread = thread

    def __call__(self) -> Any:
        thread = self._thread
        begin_ns = self._now()
        if thread.since_ns is not None:  # else step() has returned, or runs in another thread
            record_past(_OPTIMIZER, thread.part_ns, begin_ns)
        try:
            return self._closure()
        finally:
            thread.part_ns = self._now()
            thread.closures_ns += thread.part_ns - begin_ns
