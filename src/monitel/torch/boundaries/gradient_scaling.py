"""Calls of ``GradScaler.step()``, which skips the optimizer's step if a gradient is not finite."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler

from monitel.torch._compat import compile_only_below, untraced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOOK = "__init_subclass__"


class GradientScaling:
    """Wraps ``step()`` of torch's GradScaler and of its subclasses, including those defined later.

    Args:
        around: Called with the scaler, the optimizer, and a function that calls the original ``step()``.
    """

    def __init__(self, around: Callable[[Any, Any, Callable[[], Any]], Any]) -> None:
        self._around = around
        self._on = False
        self._wrapped: list[tuple[Any, Any, Any]] = []  # class, original, wrapper

    def install(self) -> None:
        """Wrap the methods."""
        self._on = True
        for each in dict.fromkeys(_with_subclasses(GradScaler)):
            self._wrap(each)

        def wrap_subclass(subclass: Any, **kwargs: Any) -> None:
            super(GradScaler, subclass).__init_subclass__(**kwargs)
            if self._on:
                self._wrap(subclass)

        self._hook: Any = classmethod(wrap_subclass)  # type: ignore[arg-type]  # Any, where torch is missing
        setattr(GradScaler, _HOOK, self._hook)

    def remove(self) -> None:
        """Restore the methods. A wrapper that somebody else has wrapped stays, and only passes calls on."""
        self._on = False
        for scaler, original, wrapper in self._wrapped:
            if vars(scaler)["step"] is wrapper:
                scaler.step = original
        self._wrapped.clear()
        if vars(GradScaler).get(_HOOK) is self._hook:
            delattr(GradScaler, _HOOK)

    def _wrap(self, scaler: Any) -> None:
        original = vars(scaler).get("step")
        if not callable(original):  # inherited
            return

        @wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(scaler, optimizer, *args, **kwargs)
            return self._around(scaler, optimizer, lambda: original(scaler, optimizer, *args, **kwargs))

        scaler.step = untraced(step)
        compile_only_below(step)
        self._wrapped.append((scaler, original, step))


def _with_subclasses(scaler: Any) -> Iterator[Any]:
    yield scaler
    for each in scaler.__subclasses__():
        yield from _with_subclasses(each)
