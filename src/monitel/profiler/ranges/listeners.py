"""The recording of ranges: what begins and ends, in which thread and task, and who is told.

This layer knows nothing of profiles, traces or spans. Whoever wants ranges subscribes::

    listening = ranges.listen(began=on_begin, ended=on_end)   # either may be left out
    ...
    listening.close()

* Both are called with the same :class:`Range`, in the thread and the context that runs it, with nothing locked. They
  must be quick and thread-safe: ``list.append`` is both. An Exception from one goes to :func:`sys.unraisablehook`.
* Who is told of the end is fixed when a range begins: a listener hears of each end whose beginning it could have
  heard of, also after ``close()``, and of no other.
* Parents come from the context (:mod:`contextvars`): asyncio tasks that take turns have the right ones. The range in
  which a task was made is the parent of the task's outermost ranges, and may end before them.
* When a range begins, its parent has not ended. So a listener that keeps something for each range, a span's ids say,
  keeps it by the Range (hashable, by identity) from its beginning to its end, and finds the parent's there; where it
  finds none, the parent began before it listened.
* While nobody listens, nothing is recorded, and what then begins stays unknown to who listens later.
* A forked child has no listeners: whoever wants its ranges subscribes there.
"""

from __future__ import annotations

import os
import time
from sys import modules
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from monitel import clock
from monitel.profiler import _ranges
from monitel.profiler._ranges import Range
from monitel.profiler.decoration import decorated
from monitel.profiler.tracks import Track

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Told = Callable[[Range], object]
    Arguments = str | Mapping[str, Any] | None

__all__ = ["Listening", "Range", "Track", "current_range", "listen", "now", "record_function", "synchronize"]

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_begin, _end = _ranges.begin, _ranges.end
now = _ranges.now  #: The monotonic clock that ranges are on: a test's, or the system's.
_lock = RLock()  # held for a moment while the tuple is replaced
_listeners: tuple[Listening, ...] = ()


class Listening:
    """What :func:`listen` returns; leaving ``with listening:`` closes it."""

    __slots__ = ("began", "ended")

    def __init__(self, began: Told | None, ended: Told | None) -> None:
        self.began = began
        self.ended = ended

    def close(self) -> None:
        """Be told of no further beginnings; a second time does nothing."""
        with _lock:
            _tell(tuple(other for other in _listeners if other is not self))

    def __enter__(self) -> Listening:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def listen(*, began: Told | None = None, ended: Told | None = None) -> Listening:
    """Be told of every range that begins from now on, in all threads; the module says how.

    The wall clock is compared with the monotonic one here: who listens for days calls :func:`synchronize` now and
    then, so that times stay exact.

    Example:
        >>> from monitel.profiler import ranges, record_function
        >>> names = []
        >>> with ranges.listen(ended=lambda ended: names.append(ended.name)):
        ...     with record_function("step"), record_function("forward"):
        ...         pass
        >>> names
        ['forward', 'step']
    """
    listening = Listening(began, ended)
    with _lock:
        synchronize()
        _tell((*_listeners, listening))
    return listening


def current_range() -> Range | None:
    """The innermost range that runs in this context; None when none does, or nobody listened as it began."""
    return _ranges.current()


def synchronize() -> int:
    """Take the clock in place, and compare its two readings.

    Returns:
        What to add to a monotonic time to get a Unix time: by the tightest of a few readings of both.
    """
    injected = clock.injected()
    source: Any = injected or time
    tries = ((source.monotonic_ns(), source.time_ns(), source.monotonic_ns()) for _ in range(5))
    before, wall, after = min(tries, key=lambda each: each[2] - each[0])
    epoch_ns = int(wall - (before + after) // 2)
    _ranges.set_clock(injected, epoch_ns)
    return epoch_ns


class record_function:  # noqa: N801  torch's name
    """Give a block, or each call of a function, a name that shows in profiles.

    A context manager, and a decorator of functions, coroutine functions (a range from the first await to the result)
    and generator functions (a range each time the generator runs, none while its consumer does). It records from
    any thread and asyncio task, costs next to nothing while nobody listens, and does nothing while torch.compile
    traces. One object can be entered again, also by several threads at once.

    Args:
        name: What happens, a str; few different names make a readable profile. Anything else shows as ``str(name)``.
        args: Details: a str, as torch has it, or a mapping of names to values. Read when a trace is written.

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
        self._opened: Range | Literal[False] | None = None  # False: nobody listened

    def __enter__(self) -> record_function:  # noqa: PYI034  typing.Self is 3.11's
        # What compiling() asks, without the call, and before anything that dynamo would guard on: whether somebody
        # listens must not be a reason to compile anew. Before torch._dynamo is loaded, nothing is traced.
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return self
        if not _listeners:
            self._opened = False
            return self
        self._opened = _begin(self, self.name, self.args)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:  # not *_, which is slower
        if self._opened is False:
            return
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return
        _end(self, self._opened)

    def __call__(self, function: _Function) -> _Function:
        """Record each call of ``function``."""
        name, args = self.name, self.args
        return decorated(function, lambda: record_function(name, args))

    def __repr__(self) -> str:
        return f"record_function({self.name!r}{'' if self.args is None else f', {self.args!r}'})"


def _tell(listeners: tuple[Listening, ...]) -> None:
    global _listeners
    _ranges.tell(
        tuple(each.began for each in listeners if each.began is not None),
        tuple(each.ended for each in listeners if each.ended is not None),
    )
    _listeners = listeners


def _start_unheard() -> None:
    """In a forked child: the parent's listeners stay the parent's."""
    global _lock
    _lock = RLock()
    _ranges.forget()
    _tell(())


os.register_at_fork(after_in_child=_start_unheard)
