"""How long forward, backward and the optimizer take, as the host sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import autograd
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monitel import clock
from monitel.registry import _each
from monitel.stats import Stat
from monitel.torch._compat import untraced
from monitel.torch.work import duration_stat

if TYPE_CHECKING:
    from torch import nn


class Phases:
    """Stats of seconds: ``training.backward.duration``, ``training.optimizer.duration``, ``training.forward.duration``.

    These are times of the host: on a GPU, where work is queued, they are what the queuing takes, and the waiting where
    the queue is full. Of an optimizer's ``step()`` that calls another, the innermost is timed. Forward is measured of
    the model that was given; torch's hooks for all modules would run for each layer.

    Args:
        window_size: Of the Stats, seconds.
        model: Whose forward is timed; None: none is.
    """

    def __init__(self, window_size: float, model: nn.Module | None) -> None:
        self._model = model
        self._now = clock.reading()
        self._forward = duration_stat("training.forward.duration", "The model's forward", window_size)
        self._backward = duration_stat("training.backward.duration", "Backward", window_size)
        self._optimizer = duration_stat("training.optimizer.duration", "optimizer.step()", window_size)
        self._on = False
        self._forward_ns: int | None = None
        self._optimizer_ns: int | None = None

    def install(self) -> None:
        """Hook optimizers and the model, and wrap ``torch.autograd.backward``, which ``Tensor.backward`` calls."""
        self._hooks: list[Any] = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        if self._model is not None:
            self._hooks += [
                self._model.register_forward_pre_hook(self._before_forward),
                self._model.register_forward_hook(self._after_forward),
            ]
        self._original = original = autograd.backward
        self._on = True
        add, now = self._backward.add, self._now

        def timed_backward(*args: Any, **kwargs: Any) -> None:
            if is_dynamo_compiling() or not self._on:
                original(*args, **kwargs)
                return
            begin_ns = now()
            original(*args, **kwargs)
            add((now() - begin_ns) / 1e9)

        self._timed = timed_backward
        autograd.backward = timed_backward

    def remove(self) -> None:
        """Undo it; where somebody has wrapped our backward, it only passes on."""
        self._on = False
        for hook in self._hooks:
            hook.remove()
        if autograd.backward is self._timed:
            autograd.backward = self._original
        _each(Stat.flush, [self._forward, self._backward, self._optimizer])

    def _before_forward(self, *_call: object) -> None:
        if not is_dynamo_compiling():
            self._forward_ns = self._now()

    def _after_forward(self, *_call: object) -> None:
        if not is_dynamo_compiling() and self._forward_ns is not None:
            self._forward.add((self._now() - self._forward_ns) / 1e9)
            self._forward_ns = None

    @untraced
    def _before_optimizer(self, *_call: object) -> None:
        self._optimizer_ns = self._now()

    @untraced
    def _after_optimizer(self, *_call: object) -> None:
        if self._optimizer_ns is not None:
            self._optimizer.add((self._now() - self._optimizer_ns) / 1e9)
            self._optimizer_ns = None
