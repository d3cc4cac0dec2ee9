"""The activities of one thread, which divide its time, in Python. ``_activities_c.c`` is its twin in C."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.clock import since_boot_ns
from monitel.os_threads import RLock, get_ident

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = tuple[int, dict[str, int], str, int]

_DEPTH = 256  # of nested activities; deeper ones are ignored
_gil_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)


def main_thread_pulse() -> int:
    """Return a number that changes between two calls if the main thread executes Python code between them.

    Only the twin in C can tell; here the number never changes.
    """
    return 0


class _State(NamedTuple):
    """Everything that changes, replaced at once: the totals always add up to ``since_ns - start_ns``."""

    owner: int  # identity of the thread
    start_ns: int
    since_ns: int
    changed_ns: int  # when an activity was entered or left
    totals: dict[str, int]  # never changed
    between: str  # name of the time without an activity
    after_startup: str | None  # name that replaces it after startup; None when startup is over
    stack: tuple[tuple[list[int], str], ...]  # the count of each entered activity, which identifies it, and its name

    def current(self) -> str:
        return self.stack[-1][1] if self.stack else self.between

    def spent(self, now_ns: int) -> tuple[int, dict[str, int]]:
        """Return time and totals later: the time up to now belongs to the current activity."""
        _, _, since_ns, _, totals, between, _, stack = self
        if now_ns <= since_ns:
            return since_ns, totals
        name = stack[-1][1] if stack else between
        return now_ns, {**totals, name: totals.get(name, 0) + now_ns - since_ns}


def _new(*fields: Any) -> _State:
    """Return a state, in half the time of its constructor."""
    return tuple.__new__(_State, fields)


class Activity:
    """One activity: a context manager and a decorator."""

    __slots__ = ("_activities", "_ends_startup", "_ignored", "name")

    _activities: Activities
    _ends_startup: bool
    _ignored: list[int]  # how often it was entered without effect, and not left yet
    name: str

    def __new__(cls, activities: Activities, name: str, ends_startup: bool) -> Activity:  # noqa: PYI034
        """Create one. Not __init__(), so that a wrong call leaves no object for __del__()."""
        self = object.__new__(cls)
        self._activities = activities
        self._ends_startup = ends_startup
        self._ignored = [0]
        self.name = name
        return self

    def __enter__(self) -> Activity:  # noqa: PYI034  typing.Self is 3.11's
        if not self._activities._enter(self, get_ident()):
            self._activities._count(self._ignored, 1)
        return self

    def __exit__(self, *_exception: object) -> None:
        ignored = self._ignored
        if (ignored[0] and not self._activities._is_owner()) or (not self._activities._leave(self) and ignored[0]):
            self._activities._count(ignored, -1)

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        decorated: Callable[..., Any] = self._activities._decorate(function, self.name)
        return decorated

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave: it was garbage-collected while it was entered. At the end of the interpreter, globals are None."""
        while not is_ending() and self._activities._leave(self):
            pass

    def __repr__(self) -> str:
        return f"activity({self.name!r})"


class Activities:
    """The activities of one thread, whose durations add up to the elapsed time.

    A change replaces the state that it has read; if a signal handler or another thread has replaced it meanwhile, the
    change starts again. With the GIL that needs no lock.

    Args:
        new_name: Called with a name that is new: returns the name under which it counts, and whether it ends startup.
        decorate: Called with a function and a name, by the decorator.
        clock: Returns nanoseconds; by default those since the system was started, suspended time included.
    """

    def __init__(
        self,
        new_name: Callable[[object], tuple[str, bool]],
        decorate: Callable[[Callable[..., Any], str], Callable[..., Any]],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._new_name = new_name
        self._decorate = decorate
        self._now = clock or since_boot_ns
        self._names: dict[str, bool] = {}  # with True if the name ends startup
        self._ignored = [0]
        self._state: _State | None = None
        self.stop()

    def activity(self, name: str) -> Activity:
        """Return an activity with this name."""
        return Activity(self, *self._counted(name))

    def begin(self, start_ns: int, first: str, later: str) -> None:
        """Start at a time, with names for the time without an activity: one during startup, and one after it."""
        first, later = self._counted(first)[0], self._counted(later)[0]
        start_ns = min(start_ns, self._now())
        self._ignored = [0]
        self._state = _State(get_ident(), start_ns, start_ns, start_ns, {}, first, later, ())

    def stop(self) -> None:
        """Ignore all activities until begin(). A forked child calls it, so it takes no lock."""
        self._lock = None if _gil_enabled() else RLock()
        self._state = None

    def end_startup(self, name: str, take_over: bool = True) -> None:
        """From now on time without an activity counts under this name; the calling thread takes over."""
        name, thread = self._counted(name)[0], get_ident()
        while (state := self._state) is not None:
            owner = thread if take_over else state.owner
            kept = state.stack if state.owner == owner else ()
            since_ns, totals = state.spent(self._now())
            if self._replaced(state, _new(owner, state.start_ns, since_ns, since_ns, totals, name, None, kept)):
                for ignored, _ in state.stack[len(kept) :]:  # now they are activities of another thread
                    ignored[0] += 1
                break

    def enter_for_owner(self, name: str, changed_ns: int | None = None) -> Activity | None:
        """Enter an activity for the owner; None if it has changed since the time that position() has returned."""
        activity = self.activity(name)
        return activity if self._enter(activity, None, changed_ns) else None

    def position(self) -> tuple[int, str, int]:
        """Return the owner, its current activity, and when that began; zeros after stop()."""
        state = self._state
        return (0, "", 0) if state is None else (state.owner, state.current(), state.changed_ns)

    def read(self) -> Read | None:
        """Return elapsed ns, ns by name, the current name and the number of ignored entries; None after stop()."""
        while (state := self._state) is not None:
            since_ns, totals = state.spent(self._now())
            if self._replaced(state, state._replace(since_ns=since_ns, totals=totals)):  # no later read returns less
                name = state.current()
                return since_ns - state.start_ns, {**totals, name: totals.get(name, 0)}, name, self._ignored[0]
        return None

    def _counted(self, name: str) -> tuple[str, bool]:
        if type(name) is str and name in self._names:
            return name, self._names[name]
        counted, ends_startup = self._new_name(name)
        return counted, self._names.setdefault(counted, ends_startup)

    def _replaced(self, state: _State, new: _State) -> bool:
        """Replace the state by a new one, and return True; False if it has changed since it was read."""
        if self._lock is None:
            if self._state is state:
                self._state = new  # no call since the comparison, so nothing comes in between
                return True
            return False
        with self._lock:
            unchanged = self._state is state
            if unchanged:
                self._state = new
            return unchanged

    def _count(self, number: list[int], change: int) -> None:
        """Change a number of entries without effect."""
        if self._lock is None:
            number[0] += change
        else:
            with self._lock:
                number[0] += change

    def _is_owner(self) -> bool:
        state = self._state
        return state is not None and state.owner == get_ident()

    def _enter(self, activity: Activity, thread: int | None, changed_ns: int | None = None) -> bool:
        """Enter an activity, and return True; False if the thread is not the owner. None is the owner."""
        while (state := self._state) is not None:
            if changed_ns is not None and changed_ns != state.changed_ns:
                return False
            if (thread is not None and thread != state.owner) or len(state.stack) == _DEPTH:
                self._count(self._ignored, 1)
                return False
            owner, start_ns, _, _, _, between, after_startup, stack = state
            if after_startup is not None and activity._ends_startup:
                between, after_startup = after_startup, None
            since_ns, totals = state.spent(self._now())
            stack = (*stack, (activity._ignored, activity.name))
            if self._replaced(state, _new(owner, start_ns, since_ns, since_ns, totals, between, after_startup, stack)):
                return True
        return False

    def _leave(self, activity: Activity) -> bool:
        """Remove the innermost entry of an activity, and return True; False if there is none."""
        while (state := self._state) is not None:
            owner, start_ns, _, _, _, between, after_startup, stack = state
            for index in range(len(stack) - 1, -1, -1):
                if stack[index][0] is activity._ignored:
                    break
            else:
                return False
            since_ns, totals = state.spent(self._now())
            stack = stack[:index] + stack[index + 1 :]
            if self._replaced(state, _new(owner, start_ns, since_ns, since_ns, totals, between, after_startup, stack)):
                return True
        return False
