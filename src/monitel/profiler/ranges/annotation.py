"""Named ranges around blocks and calls of functions."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from monitel.decoration import decorated
from monitel.failures import error_type
from monitel.profiler.ranges import _ranges, listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel.profiler.ranges._ranges import Range
    from monitel.profiler.ranges.tracks import Track

    Arguments = str | Mapping[str, Any] | None

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_begin, _end = _ranges.begin, _ranges.end


class record_function:  # noqa: N801  torch's name
    """Record a block, or each call of a function, as a range with a name.

    It is a context manager and a decorator. Decorated functions can be plain functions, coroutine functions (one range
    from the first await to the result) and generator functions (one range each time the generator runs, none while its
    consumer runs). It records from any thread and asyncio task, costs next to nothing without listeners, and has no
    effect while torch.compile traces. An object can be entered again, by several threads at once too. An Exception that
    leaves the block is the range's error, but not the normal end of a generator.

    Args:
        name: Name of the range, a str; any other object is recorded as ``str(name)``. Profiles group by name, so use
            few different ones.
        args: Details: a str, as in torch, or a mapping of names to values. They are read when a trace is written.

    Example:
        >>> from monitel.profiler import profile, record_function
        >>> @record_function("square")
        ... def square(x):
        ...     return x * x
        >>> with profile() as prof:
        ...     with record_function("sum", "of squares"):
        ...         total = sum(map(square, range(3)))
        >>> [event.name for event in prof.events()]
        ['sum', 'square', 'square', 'square']
    """

    __slots__ = ("__weakref__", "_opened", "args", "name")

    def __init__(self, name: str, args: Arguments = None) -> None:
        self.name = name
        self.args = args
        self._opened: Range | Literal[False] | None = None  # False: there were no listeners

    def __enter__(self) -> record_function:  # noqa: PYI034  typing.Self is 3.11's
        # compiling() inlined, and before anything that dynamo would guard on: a new listener must not cause
        # recompilation. Before torch._dynamo is loaded, nothing is traced.
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return self
        if not listeners.active:
            self._opened = False
            return self
        self._opened = _begin(self, self.name, self.args)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:  # not *_, which is slower
        if self._opened is False:
            return
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return
        if kind is None:
            _end(self, self._opened)
        else:
            _end(self, self._opened, error_type(kind))

    def __call__(self, function: _Function) -> _Function:
        """Return ``function`` with a range around each call."""
        name, args = self.name, self.args
        return decorated(function, lambda: record_function(name, args))

    def __repr__(self) -> str:
        args = "" if self.args is None else f", {self.args!r}"
        return f"record_function({self.name!r}{args})"


def record_past(name: str, start_ns: int, end_ns: int, args: Arguments = None, track: Track | None = None) -> None:
    """Record a range whose two ends are known only now, such as a training step, which ends with a call.

    Listeners receive its beginning and its end at once. Ranges that began within it are not its children. Without
    listeners it does nothing.

    Args:
        name: As :class:`record_function`.
        start_ns: Start, by ``monitel.profiler.ranges.now()``. The parent is the innermost running range of this
            context that began at that time or before.
        end_ns: End, by the same clock.
        args: As :class:`record_function`.
        track: The track; by default that of the current thread or task. A range that others overlap without being
            nested in it, such as a step, belongs to a separate track.

    Example:
        >>> from monitel.profiler import profile, ranges
        >>> with profile() as prof:
        ...     start_ns = ranges.now()
        ...     total = sum(range(1000))
        ...     ranges.record_past("sum", start_ns, ranges.now())
        >>> [event.name for event in prof.events()]
        ['sum']
    """
    if listeners.active:
        _ranges.record_past(name, args, start_ns, end_ns, track)
