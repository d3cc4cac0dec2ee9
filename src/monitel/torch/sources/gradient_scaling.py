"""Calls of ``GradScaler.step()``, which skips the optimizer's step if a gradient is not finite."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from torch.amp import GradScaler

from monitel.torch._compat import compile_only_below, untraced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import RLock

    from torch import Tensor

    from monitel.counter import Counter

    class Numbers(Protocol):
        """Reads numbers of tensors without waiting for their device."""

        def open(self) -> None:
            """Begin. Each user calls close() at its end."""

        def close(self) -> None:
            """Resolve all pending numbers."""

        def reset(self) -> None:
            """Discard all pending numbers."""

        def read(self, tensor: Tensor, pending: StepOutcome, /) -> None:
            """Resolve ``pending`` with the number of a tensor, now or later."""


#: Of an optimizer's step: None if it is applied, an empty list if it is skipped, else ``found_inf`` of a fused
#: optimizer, which is not 0 if it is skipped.
Results: TypeAlias = "list[Tensor] | None"
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


class StepOutcome:
    """Counts one training step as applied or as skipped: it is skipped if all of its optimizers skip.

    Only steps with gradient scaling need it. Whether a fused optimizer skips is decided on its device, in the number
    ``found_inf``, which may arrive later. If it is lost, the step counts as applied.

    Args:
        applied: Counts applied steps.
        skipped: Counts skipped steps.
        numbers: Reads ``found_inf``.
        lock: Held while the state changes.
    """

    def __init__(self, applied: Counter, skipped: Counter, numbers: Numbers, lock: RLock) -> None:
        self._applied = applied
        self._skipped = skipped
        self._numbers = numbers
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
            self._numbers.read(each, self)

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
