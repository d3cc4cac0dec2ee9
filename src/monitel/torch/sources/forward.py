"""Duration of a model's forward."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.torch._compat import compile_only_below
from monitel.torch.training_ranges import open_range

if TYPE_CHECKING:
    from torch import nn

    from monitel.stats import Stat


class Forward:
    """Measures calls of one model with gradients enabled, so not in evaluation. A nested call is part of the outer one.

    Each call is a sample, and a range ``training.forward``. A call that raises is a range alone.

    The model's class gets a ``__call__``. Nothing is added to the model itself, as a hook would be, so it can still be
    copied, pickled and scripted.

    Args:
        stat: The Stat to which the durations are added, in seconds.
        model: The model.
    """

    def __init__(self, stat: Stat, model: nn.Module) -> None:
        self._stat = stat
        self._model = model

    def install(self) -> None:
        """Add ``__call__`` to the class. If the class had none, each call looks up the inherited method."""
        self._on = True
        self._class: Any = type(self._model)
        self._original = original = vars(self._class).get("__call__")
        thread = _Thread()
        model, above, add, now = self._model, self._class, self._stat.add, clock.reading()

        def timed_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call = super(above, module).__call__ if original is None else original.__get__(module)  # type: ignore[misc]
            if (
                is_dynamo_compiling()
                or module is not model
                or thread.is_within
                or not (self._on and torch.is_grad_enabled())
            ):
                return call(*args, **kwargs)
            end_range = open_range("training.forward")
            thread.is_within, begin_ns = True, now()
            try:
                result = call(*args, **kwargs)
                seconds = (now() - begin_ns) / 1e9
            finally:
                thread.is_within = False
                if end_range is not None:
                    end_range(None, None, None)
            add(seconds)
            return result

        compile_only_below(timed_call)
        self._timed = self._class.__call__ = timed_call

    def remove(self) -> None:
        """Restore the class. If somebody else has wrapped the method since, it stays and only passes calls on."""
        self._on = False
        if vars(self._class).get("__call__") is not self._timed:
            return
        if self._original is None:
            del self._class.__call__
        else:
            self._class.__call__ = self._original


class _Thread(local):
    is_within = False
