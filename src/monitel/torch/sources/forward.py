"""How long a model's forward takes."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.torch._compat import compile_only_below

if TYPE_CHECKING:
    from torch import nn

    from monitel.stats import Stat


class Forward:
    """Times calls of one model where gradients are on, so not in evaluation; one within another is part of it.

    Nothing is put into the model, as a hook would be, so that it can be copied, pickled and scripted: its class gets a
    ``__call__``.

    Args:
        stat: What the seconds are added to.
        model: The one.
    """

    def __init__(self, stat: Stat, model: nn.Module) -> None:
        self._stat = stat
        self._model = model

    def install(self) -> None:
        """Put the method into the class; the one it stands before is looked up with each call."""
        self._on = True
        self._class: Any = type(self._model)
        self._own = own = vars(self._class).get("__call__")
        thread = _Thread()
        model, above, add, now = self._model, self._class, self._stat.add, clock.reading()

        def timed_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call = super(above, module).__call__ if own is None else own.__get__(module)  # type: ignore[misc]
            if (
                is_dynamo_compiling()
                or module is not model
                or thread.is_within
                or not (self._on and torch.is_grad_enabled())
            ):
                return call(*args, **kwargs)
            thread.is_within, begin_ns = True, now()
            try:
                result = call(*args, **kwargs)
            finally:
                thread.is_within = False
            add((now() - begin_ns) / 1e9)
            return result

        compile_only_below(timed_call)
        self._timed = self._class.__call__ = timed_call

    def remove(self) -> None:
        """Take it out, unless somebody has wrapped it: then it only passes on."""
        self._on = False
        if vars(self._class).get("__call__") is not self._timed:
            return
        if self._own is None:
            del self._class.__call__
        else:
            self._class.__call__ = self._own


class _Thread(local):
    is_within = False
