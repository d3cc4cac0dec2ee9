"""Ranges: named stretches of time in threads and asyncio tasks, and subscriptions to them.

This module does not depend on profiles, traces or spans. A consumer of ranges subscribes::

    listening = ranges.listen(began=on_begin, ended=on_end)   # either may be omitted
    ...
    listening.close()

* Both callbacks receive the same :class:`Range`, in the thread and the context that runs it, with no lock held. They
  must be fast and thread-safe; ``list.append`` is both. An Exception from a callback goes to
  :func:`sys.unraisablehook`.
* The set of listeners for a range's end is fixed when the range begins. A listener receives exactly the ends of the
  ranges that began while it was subscribed, even after ``close()``.
* Parents come from the context (:mod:`contextvars`), so interleaved asyncio tasks have correct parents. The range in
  which a task was created is the parent of the task's outermost ranges, and may end before them.
* When a range begins, its parent has not ended. A listener can therefore store data (for example span ids) by the
  Range, which is hashable by identity, from its beginning to its end, and look up the parent's data there. If there is
  none, the parent began before the listener subscribed.
* Without listeners nothing is recorded. A range that begins then is never reported to listeners that subscribe later.
* A forked child has no listeners. To receive the child's ranges, subscribe in the child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import count
from sys import modules
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from monitel import clock
from monitel.attributes import text_of
from monitel.decoration import decorated
from monitel.process.failures import error_type, is_of_signal_handler, raise_first, report_unraisable
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock, get_ident, local, thread_names
from monitel.stats import _window

Callback = Callable[["Range"], object]
Callbacks = tuple[Callback, ...]
Arguments = str | Mapping[str, Any] | None

__all__ = ["Listening", "Range", "Track", "current_range", "listen", "now"]
__all__ += ["record_function", "record_past", "synchronize"]

_thread_id: Callable[[], int] = getattr(threading, "get_native_id", get_ident)
_of_tasks: WeakKeyDictionary[Any, Track] = WeakKeyDictionary()
_get_step = _window.get_step
_local = local()
_innermost: ContextVar[Range | None] = ContextVar("monitel.profiler.range", default=None)
_now: Callable[[], int] = clock.SYSTEM.monotonic_ns
_epoch_ns = 0
_numbers = count(1)
_lock = RLock()  # held briefly, while the listeners are replaced
active: tuple[Listening, ...] = ()
_callbacks: tuple[Callbacks, Callbacks] = (), ()  # of beginnings and of ends, of the active ones; read together
_Function = TypeVar("_Function", bound="Callable[..., Any]")


class Track:
    """Thread or asyncio task of a range; there is one object for each.

    Attributes:
        thread_id: Native id of the thread, as the operating system shows it; Python's where there is no native one.
        thread_name: Name of the thread when its first range began.
        task_name: Name of the asyncio task; None outside of tasks. The track of training steps is beside that of their
            thread, with the name ``steps`` here.
    """

    __slots__ = ("task_name", "thread_id", "thread_name")

    def __init__(self, thread_id: int, thread_name: str, task_name: str | None = None) -> None:
        self.thread_id = thread_id
        self.thread_name = thread_name
        self.task_name = task_name

    def __str__(self) -> str:
        return self.thread_name if self.task_name is None else f"{self.task_name} ({self.thread_name})"


def _track_of_thread() -> Track:
    """Return a new track for the calling thread. The caller stores it."""
    # Not current_thread(): it registers a dummy for a thread that the threading module did not start.
    return Track(_thread_id(), thread_names().get(get_ident(), "thread"))


def _track_of_task(task: Any) -> Track:
    """Return the track of an asyncio task that runs in the calling thread."""
    track = _of_tasks.get(task)
    if track is None:
        thread = _track_of_thread()
        track = _of_tasks[task] = Track(thread.thread_id, thread.thread_name, task.get_name())
    return track


class Range:
    """A named stretch of time in one thread or asyncio task.

    Attributes:
        name: Name, a str.
        args: Details as given to :class:`record_function`, unchecked.
        parent: The range around it when it began, None at the top. A listener that subscribed later than the
            parent's beginning has not received the parent.
        track: Thread and task, a :class:`Track`.
        step: :func:`monitel.get_step` when it began.
        error_type: Class name of the Exception that left it, with the module unless it is built in; None if there was
            none.
        monotonic_start_ns: Beginning, by the monotonic clock.
        monotonic_end_ns: End, by the monotonic clock; -1 while it runs.
        number: Number of ranges that this process has recorded so far, with this one. Traces call it
            ``Record function id``, and execution traces ``rf_id``.
    """

    __slots__ = (
        *("_epoch_ns", "_label", "_listeners", "args", "error_type", "monotonic_end_ns", "monotonic_start_ns"),
        *("name", "number", "parent", "step", "track"),
    )

    def __init__(self, name: str, args: Any, start_ns: int, label: int, listeners: Callbacks) -> None:
        self.name = name if type(name) is str else text_of(name) or "unnamed"
        self.args = args
        self.parent = _running(_innermost.get())
        self.track = _current_track()
        self.step: int | None = _get_step()
        self.error_type: str | None = None
        self.monotonic_start_ns = start_ns
        self.monotonic_end_ns = -1
        self.number = next(_numbers)
        self._epoch_ns = _epoch_ns
        self._listeners = listeners
        self._label = label  # the id of the record_function, as a reference would be a cycle; 0 after the end

    @property
    def start_ns(self) -> int:
        """Beginning, in Unix ns."""
        return self._epoch_ns + self.monotonic_start_ns

    @property
    def end_ns(self) -> int | None:
        """End, in Unix ns; None while it runs. Never before the beginning, even if the wall clock was set back."""
        return None if self.monotonic_end_ns < 0 else self._epoch_ns + self.monotonic_end_ns

    def __repr__(self) -> str:
        length_ns = self.monotonic_end_ns - self.monotonic_start_ns
        return f"<Range {self.name!r} in {self.track}, {'running' if self.monotonic_end_ns < 0 else f'{length_ns} ns'}>"


def _end(label: object, opened: Range | None, error_type: str | None) -> None:
    """End the innermost range of a label, or the given Range if the context has none; an error's type is kept."""
    end_ns = _now()
    found = _innermost.get()
    while found is not None and found._label != id(label):
        found = found.parent
    if found is None:  # the range began in another context
        found = opened
    if found is None or not found._label:
        raise AssertionError("Expected record to be set")
    found.error_type = error_type
    _finish(found, end_ns)


def current_range() -> Range | None:
    """Return the innermost running range of this context; None if there is none or it began without listeners."""
    return _running(_innermost.get())


def now() -> int:
    """Return the monotonic time in ns by the clock of ranges."""
    return _now()


class Listening:
    """A subscription, as :func:`listen` returns it. Leaving ``with listening:`` closes it."""

    __slots__ = ("began", "ended")

    def __init__(self, began: Callback | None, ended: Callback | None) -> None:
        self.began = began
        self.ended = ended

    def close(self) -> None:
        """Stop receiving the beginnings of ranges. Idempotent."""
        with _lock:
            _replace(tuple(other for other in active if other is not self))

    def __enter__(self) -> Listening:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def listen(*, began: Callback | None = None, ended: Callback | None = None) -> Listening:
    """Call ``began`` and ``ended`` with every range that begins from now on, in all threads.

    The docstring of :mod:`monitel.profiler.ranges` states what callbacks can rely on. This call compares the wall clock
    with the monotonic clock. A listener that runs for days calls :func:`synchronize` from time to time, so that Unix
    times stay exact.

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
        _replace((*active, listening))
    return listening


def synchronize() -> int:
    """Use the current clock (the system's, or a test's) for ranges, and compare its two readings.

    Returns:
        Nanoseconds to add to a monotonic time to get a Unix time, from the tightest of five pairs of readings.
    """
    global _now, _epoch_ns
    source = clock.injected() or clock.SYSTEM
    tries = ((source.monotonic_ns(), source.time_ns(), source.monotonic_ns()) for _ in range(5))
    before, wall, after = min(tries, key=lambda each: each[2] - each[0])
    _now, _epoch_ns = source.monotonic_ns, int(wall - (before + after) // 2)
    return _epoch_ns


def _finish(self: Range, end_ns: int) -> None:
    self.monotonic_end_ns = end_ns
    self._label = 0
    if _innermost.get() is self:
        _innermost.set(self.parent)
    _notify(self._listeners, self)


def _running(found: Range | None) -> Range | None:
    """Return the nearest range that has not ended: a range can end before the ranges within it."""
    while found is not None and not found._label:
        found = found.parent
    return found


def _notify(listeners: Callbacks, self: Range) -> None:
    """Call each listener. Report an Exception as unraisable, unless a signal handler has raised it; raise others."""
    raised: list[BaseException] = []
    for listener in listeners:
        try:
            listener(self)
        except Exception as error:
            if is_of_signal_handler(error):
                raised.append(error)
            else:
                report_unraisable(error)
    if raised:
        raise_first(raised)


def _current_track() -> Track:
    if "asyncio.runners" in modules:  # asyncio's last module: if it is loaded, the others are complete
        loop = modules["asyncio.events"]._get_running_loop()
        task = None if loop is None else modules["asyncio.tasks"].current_task(loop)
        if task is not None:
            return _track_of_task(task)
    try:
        track: Track = _local.track
    except AttributeError:
        track = _local.track = _track_of_thread()
    return track


def _replace(listeners: tuple[Listening, ...]) -> None:
    global active, _callbacks
    beginnings = tuple(each.began for each in listeners if each.began is not None)
    _callbacks = beginnings, tuple(each.ended for each in listeners if each.ended is not None)
    active = listeners


def _reset_after_fork() -> None:
    """Remove the parent's listeners in a forked child, where a thread and a task have another native id."""
    global _lock, _of_tasks
    _lock = RLock()
    _local.__dict__.clear()
    _of_tasks = WeakKeyDictionary()  # not clear(): another thread of the parent may have locked it
    _replace(())


register_at_fork(after_in_child=_reset_after_fork)


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
        if not active and (self._latest is None or current_range() is None):
            self._unrecorded = True
            return self
        beginnings, ends = _callbacks
        began = Range(self.name, self.args, _now(), id(self), ends)
        try:
            _innermost.set(began)
            _notify(beginnings, began)
        except BaseException:  # the block that the range was to enclose will not run
            _finish(began, began.monotonic_start_ns)
            raise
        self._latest = began
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:  # not *_, which is slower
        if self._unrecorded and (self._latest is None or current_range() is None):
            return
        if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():
            return
        elsewhere = None if self._unrecorded else self._latest  # once unrecorded, it may be of another thread's block
        try:
            _end(self, elsewhere, None if kind is None else error_type(kind))
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
    if not active:
        return
    beginnings, ends = _callbacks
    self = Range(name, args, start_ns, 0, ends)
    while self.parent is not None and (not self.parent._label or self.parent.monotonic_start_ns > start_ns):
        self.parent = self.parent.parent
    if track is not None:
        self.track = track
    self.monotonic_end_ns = end_ns
    _notify(beginnings, self)
    _notify(ends, self)
