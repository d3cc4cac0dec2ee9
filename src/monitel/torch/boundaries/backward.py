"""Calls of backward, and the moment at which a rank has ended its own part of it."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, autograd, distributed
from torch.autograd.graph import GradientEdge
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.torch._compat import (
    backward_callbacks,
    backward_is_compiled,
    backward_under_way,
    compile_only_below,
    never_compile,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Thread(Protocol):
    """The thread that calls backward. Autograd may call these methods in another thread."""

    def waited(self) -> int:
        """Return the nanoseconds that the thread has waited for other ranks so far."""

    def gradients_complete(self) -> None:
        """The own gradients are complete; waiting for those of other ranks follows."""


class BackwardListener(Protocol):
    """Receives the begin and the end of each backward, in the thread that calls it."""

    def backward_began(self, now_ns: int, *, nested: bool) -> Thread | None:
        """Backward begins; nested: within another one. Returns the thread; None if nothing is measured."""

    def backward_ended(self, now_ns: int, tail_ns: int, *, nested: bool) -> None:
        """Backward has ended, or raised.

        Args:
            now_ns: The time.
            tail_ns: Time that it waited for other ranks at its end, without waiting that was seen otherwise.
            nested: Whether it was within another one.
        """


class Backward:
    """Reports each backward to a listener: it wraps ``torch.autograd.backward``, which ``Tensor.backward`` calls.

    DistributedDataParallel waits for the other ranks in a callback that it queues on the autograd engine, at the end of
    backward. A callback that is queued before it, by a hook of each root, runs when the own gradients are complete. The
    hooks are removed after backward. They exist only in a process group of several ranks, and not where torch compiles
    backward, because they would become part of its graphs.

    Args:
        listener: The listener.
    """

    def __init__(self, listener: BackwardListener) -> None:
        self._listener = listener
        self._now = clock.reading()
        self._on = False

    def install(self) -> None:
        """Wrap the function."""
        is_within = backward_under_way()
        self._queue = backward_callbacks()
        self._original = original = autograd.backward
        self._on = True
        began, ended = self._listener.backward_began, self._listener.backward_ended
        now = self._now

        @wraps(original)
        def timed_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if is_dynamo_compiling() or not self._on:
                original(tensors, *args, **kwargs)
                return
            nested = is_within()
            thread = began(now(), nested=nested)
            if thread is None:
                original(tensors, *args, **kwargs)
                return
            if several_ranks() and not backward_is_compiled():
                self._among_ranks(thread, nested, tensors, args, kwargs)
                return
            try:
                original(tensors, *args, **kwargs)
            finally:
                ended(now(), 0, nested=nested)

        for function in (timed_backward, self._among_ranks):
            compile_only_below(function)
        for each in (began, ended, several_ranks, backward_is_compiled, self._hook):
            never_compile(each)
        self._timed = timed_backward
        autograd.backward = timed_backward

    def remove(self) -> None:
        """Restore the function. If somebody else has wrapped it since, the wrapper stays and only passes calls on."""
        self._on = False
        if autograd.backward is self._timed:
            autograd.backward = self._original

    def _among_ranks(
        self, thread: Thread, nested: bool, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Call the original function, and report its end with the time that it waited at its end."""
        now = self._now
        moments: list[tuple[int, int]] = []  # when the own gradients were complete, and what it had waited then

        def complete() -> None:
            moments.append((now(), thread.waited()))
            if not nested:
                thread.gradients_complete()

        hooks: list[Any] = []
        try:
            tensors = (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)
            self._hook(tensors, complete, hooks)
            self._original(tensors, *args, **kwargs)
        finally:
            end_ns = now()
            for hook in hooks:
                hook.remove()
            tail_ns = max(0, end_ns - moments[-1][0] - (thread.waited() - moments[-1][1])) if moments else 0
            self._listener.backward_ended(end_ns, tail_ns, nested=nested)

    def _hook(self, roots: tuple[Any, ...], complete: Callable[[], None], hooks: list[Any]) -> None:
        """Have the engine call ``complete`` when the gradients are, and append the hooks of the roots."""
        queued: list[bool] = []

        def begin(*_gradients: object) -> None:
            if not queued:
                queued.append(True)
                self._queue(complete)

        for root in roots:
            if isinstance(root, GradientEdge):
                hooks.append(root.node.register_prehook(begin))
            elif isinstance(root, Tensor) and root.requires_grad:
                hooks.append(root.register_hook(begin))


def several_ranks() -> bool:
    """Return whether this process is in a process group of several ranks."""
    world = distributed.group.WORLD if distributed.is_available() else None
    return world is not None and world.size() > 1
