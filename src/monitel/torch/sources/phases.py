"""How long forward, backward and the optimizer take, as the host sees it."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

from torch import autograd
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.registry import _each
from monitel.stats import Stat
from monitel.torch._compat import backward_under_way, compile_only_below, untraced
from monitel.torch.forward import Forward
from monitel.torch.steps import hook_optimizers
from monitel.torch.work import duration_stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class Phases:
    """Stats of seconds: ``training.backward.duration``, ``training.optimizer.duration``, ``training.forward.duration``.

    These are times of the host: on a GPU, where work is queued, they are what the queuing takes, and the waiting where
    the queue is full. A backward within another, as a checkpoint may have it, is part of that. Of an optimizer's
    ``step()`` that calls another, the innermost is timed, without its closure, which is forward and backward. Forward
    is measured of the model that was given; torch's hooks for all modules would run for each layer.

    Args:
        window_size: Of the Stats, seconds.
        model: Whose forward is timed; None: none is.
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
        """Hook optimizers, wrap ``torch.autograd.backward``, which ``Tensor.backward`` calls, and time the model."""
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
            begin_ns = now()
            original(*args, **kwargs)
            add((now() - begin_ns) / 1e9)

        compile_only_below(timed_backward)
        self._timed = timed_backward
        autograd.backward = timed_backward

    def remove(self) -> None:
        """Undo it; where somebody has wrapped our backward, it only passes on."""
        self._on = False
        for hook in self._hooks:
            hook.remove()
        if autograd.backward is self._timed:
            autograd.backward = self._original
        if self._forward is not None:
            self._forward.remove()
        _each(Stat.flush, [self._forward_stat, self._backward, self._optimizer])

    @untraced
    def _before_optimizer(self, _optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = self._thread
        thread.closures_ns, thread.optimizer_ns = 0, self._now()
        if len(args) > 1:  # the first is the optimizer
            return (args[0], self._timed_closure(args[1]), *args[2:]), kwargs
        if "closure" in kwargs:
            return args, {**kwargs, "closure": self._timed_closure(kwargs["closure"])}
        return None

    @untraced
    def _after_optimizer(self, *_call: object) -> None:
        thread = self._thread
        if thread.optimizer_ns is not None:
            self._optimizer.add((self._now() - thread.optimizer_ns - thread.closures_ns) / 1e9)
            thread.optimizer_ns = None

    def _timed_closure(self, closure: Any) -> Any:
        """A closure whose time is known; one that a step() around this has got already stays."""
        if not callable(closure) or isinstance(closure, _Closure):
            return closure
        return _Closure(closure, self._now, self._thread)


class _Thread(local):
    optimizer_ns: int | None = None  # since when
    closures_ns = 0  # how long


class _Closure:
    def __init__(self, closure: Callable[[], Any], now: Callable[[], int], thread: _Thread) -> None:
        self._closure = closure
        self._now = now
        self._thread = thread

    def __call__(self) -> Any:
        begin_ns = self._now()
        try:
            return self._closure()
        finally:
            self._thread.closures_ns += self._now() - begin_ns
