"""Named ranges around blocks and calls of functions."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar

from monitel.attributes import text_of
from monitel.decoration import decorated
from monitel.process.failures import error_type
from monitel.profiler.ranges import recorder
from monitel.profiler.ranges.recorder import begin, current_range, end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel.profiler.ranges.recorder import Range
    from monitel.profiler.ranges.tracks import Track

    Arguments = str | Mapping[str, Any] | None

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class record_function:  # noqa: N801  torch's name
    """Record a block, or each call of a function, as a range with a name.

    It is a context manager and a decorator. Decorated functions can be plain functions, coroutine functions (one range
    from the first await to the result) and generator functions (one range each time the generator runs, none while its
    consumer runs). It records from any thread and asyncio task, costs next to nothing without listeners, and has no
    effect while torch.compile traces. An Exception that leaves the block is the range's error, but not the normal end
    of a generator.

    An object can be entered again, within its block and by several threads and tasks at once too, if each leaves it in
    the thread and task in which it entered it. A block that ends elsewhere, such as a generator that another thread
    resumes, needs a separate object.

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

    # Threads that share an object write no state of one entry into it: the context has the running ranges. Each field
    # changes in one direction only, so that a thread that has set it finds it set.
    __slots__ = ("__weakref__", "_latest", "_unrecorded", "args", "name")

    def __init__(self, name: str, args: Arguments = None) -> None:
        self.name = name if type(name) is str else text_of(name) or "unnamed"
        self.args = args
        self._latest: Range | None = None  # stays set
        self._unrecorded = False  # whether a block was entered without a range; stays True

    def __enter__(self) -> record_function:  # noqa: PYI034  typing.Self is 3.11's
        # compiling() inlined, and before anything that dynamo would guard on: a new listener must not cause
        # recompilation. Before torch._dynamo is loaded, nothing is traced.
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return self
        # Within a range of this object, a block without listeners has one too: the innermost range belongs to the
        # innermost block.
        if not recorder.active and (self._latest is None or current_range() is None):
            self._unrecorded = True
            return self
        self._latest = begin(self, self.name, self.args)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:  # not *_, which is slower
        if self._unrecorded and (self._latest is None or current_range() is None):
            return
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return
        elsewhere = None if self._unrecorded else self._latest  # once unrecorded, it may be of another thread's block
        try:
            if kind is None:
                end(self, elsewhere)
            else:
                end(self, elsewhere, error_type(kind))
        except AssertionError:  # the context has no range of the object
            if not self._unrecorded:
                raise

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
    if recorder.active:
        recorder.record_past(name if type(name) is str else text_of(name) or "unnamed", args, start_ns, end_ns, track)
