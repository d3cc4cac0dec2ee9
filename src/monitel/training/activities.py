"""The ledger: the wall-clock time of this process, divided into activities, of which there is exactly one at a time.

Any thread may call, and a signal handler or a destructor may run at each call, but not between other statements: what
belongs together is therefore changed without a call in between.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from sys import is_finalizing, modules
from typing import Any, NamedTuple, TypeVar

from monitel.attributes import checked_text
from monitel.clock import since_boot_ns
from monitel.decoration import decorated
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock, get_ident, local

_Function = TypeVar("_Function", bound="Callable[..., Any]")

#: The activities that monitel itself uses, in the order in which they are shown.
ACTIVITIES = (
    *("startup", "init", "compile", "data", "step", "checkpoint.save", "checkpoint.load", "evaluation", "stuck"),
    *("other", "shutdown"),
)
#: The first other activity ends startup. A pipeline may shut down before the training begins.
_OF_STARTUP = {"startup", "init", "compile", "data", "checkpoint.load", "stuck", "shutdown"}
_ENDS_STARTUP = {name: name not in _OF_STARTUP for name in ACTIVITIES}
_MOST_NAMES = 64  # metrics have one series for each
_HOUR_NS = 3600 * 10**9
_new = object.__new__

#: True if the next step makes its thread the training thread: until the first step, and after that thread has ended.
vacant = True


class Ledger(NamedTuple):
    """The time of this process up to one moment.

    Attributes:
        elapsed_ns: Nanoseconds since the start, suspended time included: the sum of ``activities``.
        activities: Nanoseconds of each activity so far, by name.
        current: Name of the activity at that moment.
        start_ns: The start, in nanoseconds since the Unix epoch.
        origin: The start: ``"process"``, ``"import"`` of monitel if the start of the process is not known, or
            ``"fork"``.
        ignored: Number of activities without effect: those of other threads than the training thread.
    """

    elapsed_ns: int
    activities: Mapping[str, int]
    current: str
    start_ns: int
    origin: str
    ignored: int

    @property
    def goodput(self) -> float | None:
        """The share of ``step`` in the elapsed time; None before the first step."""
        steps_ns = self.activities.get("step")
        return None if steps_ns is None or not self.elapsed_ns else steps_ns / self.elapsed_ns


class _Entry:
    """An activity on the stack. It does not keep its :class:`Activity` alive, whose end is that of the activity."""

    __slots__ = ("entered", "ignored", "name")
    name: str
    entered: int  # how often it is on the stack
    ignored: int  # how often it was entered without effect, and not left yet


class Activity:
    """One activity: a context manager and a decorator. A copy, and a pickle, is a new one that is not entered."""

    __slots__ = ("_activities", "_entry", "name")
    _activities: Activities
    _entry: _Entry
    name: str

    def __enter__(self) -> Activity:  # noqa: PYI034  typing.Self is 3.11's
        activities = self._activities
        with activities._lock:
            if get_ident() == activities._owner:
                activities._enter(self._entry)
            else:
                activities._ignored += 1
                self._entry.ignored += 1
        return self

    def __exit__(self, _kind: object = None, _error: object = None, _traceback: object = None) -> None:
        activities, entry = self._activities, self._entry
        with activities._lock:
            if entry.entered and not (entry.ignored and get_ident() != activities._owner):
                activities._leave(entry)
            elif entry.ignored:
                entry.ignored -= 1

    def __call__(self, function: _Function, /) -> _Function:
        """Return a function whose calls, or runs of its generator, are this activity."""
        if not callable(function) or isinstance(function, (type, staticmethod, classmethod)):
            kind = type(function).__qualname__
            raise TypeError(f"activity({self.name!r}) decorates a function, got {kind}: {function!r:.80}")
        name = self.name
        return decorated(function, lambda: activity(name))

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        """Leave: it was garbage-collected while it was entered. At the end of the interpreter, globals are None."""
        entry = self._entry
        while entry.entered and not is_ending():
            with self._activities._lock:
                self._activities._leave(entry)

    def __reduce__(self) -> tuple[Any, ...]:
        return activity, (self.name,)

    def __repr__(self) -> str:
        return f"activity({self.name!r})"


class Activities:
    """The activities of one thread, the owner, whose durations add up to the elapsed time."""

    _start: tuple[int, str]  # Unix ns, and its origin

    def __init__(self, clock: Callable[[], int] = since_boot_ns) -> None:
        self._now = clock
        self.stop()

    def activity(self, name: str) -> Activity:
        """Return an activity with this name."""
        counted = name if type(name) is str and name in self._names else self._counted(name)
        entry, made = _new(_Entry), _new(Activity)  # constructors would take twice as long
        entry.entered = entry.ignored = 0
        made._activities, made._entry = self, entry
        made.name = entry.name = counted
        return made

    def begin(self, start_ns: int, origin: str) -> None:
        """Start at a time, with the calling thread as the owner."""
        self.stop()
        now_ns = self._now()
        self._start = time.time_ns() - (now_ns - start_ns), origin
        self._between, self._is_starting = "startup", True
        self._since_ns = self._changed_ns = min(start_ns, now_ns)
        self._owner = get_ident()

    def stop(self) -> None:
        """Ignore all activities until begin(). A forked child calls it, so it takes no lock."""
        self._lock = RLock()  # again by a signal handler or a destructor
        self._owner = self._since_ns = self._changed_ns = self._ignored = 0
        self._totals: dict[str, int] = defaultdict(int)  # nanoseconds by name, up to since_ns
        self._between = ""  # the name of the time without an activity
        self._is_starting = False
        self._stack: list[_Entry] = []
        self._names = dict(_ENDS_STARTUP)  # each name that counts: whether it ends startup

    def begin_startup(self) -> None:
        """From now on time without an activity is ``startup``, and ``other`` after the first activity that ends it."""
        with self._lock:
            if self._owner:
                self._advance()
                self._between, self._is_starting, self._changed_ns = "startup", True, self._since_ns

    def end_startup(self, name: str, take_over: bool = True) -> None:
        """From now on time without an activity counts under this name; the calling thread takes over."""
        with self._lock:
            if not self._owner:
                return
            self._advance()
            self._between, self._is_starting, self._changed_ns = name, False, self._since_ns
            if take_over and self._owner != get_ident():
                self._owner, stack, self._stack = get_ident(), self._stack, []
                for entry in stack:  # now they are activities of another thread
                    entry.ignored, entry.entered = entry.ignored + entry.entered, 0

    def enter_for_owner(self, name: str, changed_ns: int | None = None) -> Activity | None:
        """Enter an activity for the owner, from any thread; None if it cannot, or if :meth:`position` has changed."""
        activity = self.activity(name)
        with self._lock:
            if not self._owner or changed_ns not in {None, self._changed_ns}:
                return None
            self._enter(activity._entry)
        return activity

    def position(self) -> tuple[int, str, int]:
        """Return the owner, its current activity, and when that became the current one; ``(0, "", 0)`` after stop().

        The time is the same in two calls if no activity was entered or left between them.
        """
        with self._lock:
            return self._owner, self._stack[-1].name if self._stack else self._between, self._changed_ns

    def ledger(self) -> Ledger | None:
        """Return the ledger up to now; None after stop()."""
        with self._lock:
            if not self._owner:
                return None
            self._advance()
            current, totals, ignored = self._current(), {**self._totals}, self._ignored
        totals.setdefault(current, 0)
        shown = {name: totals[name] for name in ACTIVITIES if name in totals}
        return Ledger(sum(totals.values()), shown | totals, current, *self._start, ignored)

    def total_ns(self, name: str) -> int:
        """Return the nanoseconds of one activity so far, 0 without one, in less time than :meth:`ledger`."""
        with self._lock:
            if self._owner:
                self._advance()
            return self._totals.get(name, 0)

    def _counted(self, name: str) -> str:
        """Return the name under which a name counts."""
        checked = checked_text("activity name", name)
        if not checked:
            raise ValueError("an activity's name must not be empty")
        with self._lock:
            if checked not in self._names:
                if len(self._names) >= _MOST_NAMES:
                    return "other"
                self._names[checked] = True
        return checked

    def _current(self) -> str:
        return self._stack[-1].name if self._stack else self._between

    def _advance(self) -> None:
        """Count the time up to now for the current activity."""
        now_ns = self._now()
        if now_ns > self._since_ns:
            name = self._stack[-1].name if self._stack else self._between  # no call from here on
            self._totals[name] += now_ns - self._since_ns
            self._since_ns = now_ns

    def _enter(self, entry: _Entry) -> None:
        self._advance()
        if self._is_starting and self._names.get(entry.name, True):
            self._between, self._is_starting = "other", False
        entry.entered += 1
        self._changed_ns = self._since_ns
        self._stack.append(entry)

    def _leave(self, entry: _Entry) -> None:
        """Remove the innermost entry of an activity; an interrupt before that leaves it entered."""
        if self._owner:
            self._advance()
        stack = self._stack
        index = len(stack) - 1
        while index >= 0 and stack[index] is not entry:
            index -= 1
        if index >= 0:
            self._changed_ns = self._since_ns
            del stack[index]
        entry.entered -= 1


class _Untraced:
    """Takes the place of an activity while torch.compile traces the caller."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass

    def __call__(self, function: _Function) -> _Function:
        return function


_lock = RLock()
_activities = Activities()
_shutdown: Activity | None
_forked_ns: int | None  # in a forked child without steps

_activity = _activities.activity
enter_for_owner, position, total_ns = _activities.enter_for_owner, _activities.position, _activities.total_ns


def activity(name: str) -> Activity:
    """Return a context manager and decorator: the time inside it counts as this activity.

    The time of the training thread is divided into activities without gap or overlap. Nested activities belong to the
    innermost one. Time without an activity is ``startup`` before the first step (:func:`monitel.set_step`) and ``step``
    after it; in a process without steps it is ``other`` once an activity has begun that is not part of a start.

    The training thread is the main thread, or another thread that is the first to set a step, or the first to do so
    after the previous one has ended. Activities of other threads are ignored and counted. Each entry is a token, which
    is removed wherever it lies: asyncio tasks and suspended generators may enter and leave in any order. A decorated
    generator counts while it runs, not while its consumer does. While torch.compile traces the caller, it has no
    effect. A forked child has a ledger from its own first step on.

    Args:
        name: Any name; monitel itself uses those of ``monitel.training.activities.ACTIVITIES``. Beyond 64 names,
            further ones count as ``other``.

    Raises:
        TypeError: Not a str, or a str that UTF-8 cannot hold.
        ValueError: An empty name.

    Example:
        >>> import monitel
        >>> with monitel.activity("evaluation"):
        ...     accuracy = sum(range(10)) / 45
        >>> book = monitel.ledger()
        >>> "evaluation" in book.activities, sum(book.activities.values()) == book.elapsed_ns
        (True, True)
    """
    if "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling():  # compiling(), inlined
        return _Untraced()  # type: ignore[return-value]  # a new one: dynamo refuses a global one
    return _activity(name)


def ledger() -> Ledger | None:
    """Return the ledger of this process up to now; None in a forked child that has not made a step.

    The sum of the activities is the elapsed time, to the nanosecond. Any thread may call it, at any time.

    Example:
        >>> import monitel
        >>> book = monitel.ledger()
        >>> book.elapsed_ns == sum(book.activities.values())
        True
    """
    return _activities.ledger()


def begin_steps(*, take_over: bool = True) -> None:
    """End ``startup``, at the first step, or the first one after the training thread has ended.

    ``take_over`` is False if another thread waits for the step, and the caller is not the training thread.
    """
    global vacant
    with _lock:
        if not vacant:  # another thread was first
            return
        if _forked_ns is not None:
            _begin(_forked_ns, "fork")
        if take_over:
            _thread.training = _Training()
        vacant = False
        _activities.end_startup("step", take_over)


def begin_startup() -> None:
    """Count time without an activity as ``startup`` again until the next step: another run of this process begins."""
    global vacant
    with _lock:
        _activities.begin_startup()
        vacant = True


def begin_shutdown(*, take_over: bool = True) -> None:
    """Count the time from now on as ``shutdown``, inside the activities that the end has interrupted. Idempotent.

    An activity that begins later, such as a last checkpoint, counts as usual.
    """
    global _shutdown
    if _forked_ns is not None:
        return
    if take_over:
        _activities.end_startup("shutdown")
    if _shutdown is None:
        _shutdown = enter_for_owner("shutdown")


def current() -> tuple[str, float]:
    """Return the current activity of the training thread, and the seconds since it became the current one."""
    _, name, since_ns = position()
    return name, max(0, since_boot_ns() - since_ns) / 1e9


class Stage(NamedTuple):
    """The stage of a training step in progress."""

    name: str
    waits: bool  # the training thread waits for other ranks in it
    age_ns: int  # time since its begin
    thread: int = 0  # identity of the thread; 0 if it is unknown


_read_stage: Callable[[], Stage | None] | None = None


def provide_stage(read: Callable[[], Stage | None] | None) -> None:
    """Set the function that returns the stage in flight; None if nothing measures stages any more."""
    global _read_stage
    _read_stage = read


def stage_now() -> Stage | None:
    """Return the stage in flight; None if nothing measures stages, or the training thread has ended."""
    return None if (read := _read_stage) is None else read()


class _Training:
    """Lives as long as the training thread."""

    __slots__ = ()

    def __del__(self) -> None:
        global vacant
        vacant = True


class _Thread(local):
    training: _Training | None = None


_thread = _Thread()


def _process_start_ns() -> int | None:
    """Return the start of this process by the ledger's clock; None where it is unknown, or an hour ago.

    A process that has run for an hour before it imports monitel is a notebook or a server.
    """
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  pathlib is not loaded for it
            after_name = file.read().rpartition(b")")[2].split()
        start_ns = int(after_name[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return start_ns if 0 <= since_boot_ns() - start_ns < _HOUR_NS else None


def _begin(begin_ns: int, origin: str) -> None:
    global vacant, _forked_ns, _shutdown
    vacant, _forked_ns, _shutdown = True, None, None
    _activities.begin(begin_ns, origin)


def _open() -> None:
    """Start the ledger of this process."""
    start_ns = _process_start_ns()
    _begin(*((since_boot_ns(), "import") if start_ns is None else (start_ns, "process")))


def _stop_in_child() -> None:
    global _lock, vacant, _forked_ns
    _lock = RLock()
    vacant, _forked_ns = True, since_boot_ns()
    _activities.stop()


_open()
register_at_fork(after_in_child=_stop_in_child)
