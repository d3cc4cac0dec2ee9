"""Calls of backward, and the moment at which a rank has ended its own part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, distributed
from torch.autograd.graph import GradientEdge
from torch.compiler import is_dynamo_compiling

from monitel import clock
from monitel.torch._compat import (
    NO_GRAPH,
    autograd_engine,
    backward_is_compiled,
    compile_only_below,
    current_graph,
    never_compile,
    without_overrides,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_ACCUMULATE = 6  # the position of the argument accumulate_grad of the engine


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
    """Reports each backward to a listener: it replaces the object through which Python runs the autograd engine.

    All calls go through this object: ``Tensor.backward``, ``torch.autograd.backward``, including references that were
    imported before, and pipelines that run the engine directly. ``torch.autograd.grad`` is not backward.

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
        """Replace the object."""
        graph = current_graph()
        self._owner, self._name, base = autograd_engine()
        self._engine = engine = getattr(self._owner, self._name)
        self._original = original = engine.run_backward
        self._without_overrides = without_overrides()
        self._on = True
        began, ended = self._listener.backward_began, self._listener.backward_ended
        now = self._now

        class TimedEngine(base):  # type: ignore[misc, valid-type]  # the compiler expects an instance of torch's class
            def run_backward(_self, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  self is the boundary
                if is_dynamo_compiling() or not self._on or not _accumulates(args, kwargs):
                    return original(*args, **kwargs)
                nested = graph() != NO_GRAPH
                thread = began(now(), nested=nested)
                if thread is None:
                    return original(*args, **kwargs)
                if several_ranks() and not backward_is_compiled():
                    return self._among_ranks(thread, nested, args, kwargs)
                try:
                    return original(*args, **kwargs)
                finally:
                    ended(now(), 0, nested=nested)

        for function in (TimedEngine.run_backward, self._among_ranks):
            compile_only_below(function)
        for each in (began, ended, several_ranks, backward_is_compiled, self._hook, _accumulates):
            never_compile(each)
        self._timed = timed = TimedEngine()
        self._queue = timed.queue_callback
        setattr(self._owner, self._name, self._timed)

    def remove(self) -> None:
        """Restore the object. If somebody else has replaced it since, it stays and only passes calls on."""
        self._on = False
        if getattr(self._owner, self._name) is self._timed:
            setattr(self._owner, self._name, self._engine)

    def _among_ranks(self, thread: Thread, nested: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the original function, and report its end with the time that it waited at its end."""
        now = self._now
        moments: list[tuple[int, int]] = []  # when the own gradients were complete, and what it had waited then

        def complete() -> None:
            moments.append((now(), thread.waited()))
            if not nested:
                thread.gradients_complete()

        hooks: list[Any] = []
        try:
            self._hook(args[0] if args else kwargs.get("tensors", ()), complete, hooks)
            return self._original(*args, **kwargs)
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

        if not isinstance(roots, (tuple, list)):  # the engine refuses it
            return
        with self._without_overrides():
            for root in roots:
                if isinstance(root, GradientEdge):
                    hooks.append(root.node.register_prehook(begin))
                elif isinstance(root, Tensor) and root.requires_grad:
                    hooks.append(root.register_hook(begin))


def _accumulates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the engine adds the gradients to those of the leaves, as backward does."""
    return bool(args[_ACCUMULATE] if len(args) > _ACCUMULATE else kwargs.get("accumulate_grad"))


def several_ranks() -> bool:
    """Return whether this process is in a process group of several ranks."""
    world = distributed.group.WORLD if distributed.is_available() else None
    return world is not None and world.size() > 1
