"""The activities of one thread, which divide its time, in Python. ``_activities_c.c`` is its twin in C."""

from __future__ import annotations

import time
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = tuple[int, dict[str, int], str, int]

_DEPTH = 256  # of nested activities; deeper ones are ignored
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _system_now() -> int:
    return time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)


class _State(NamedTuple):
    """Everything that a reader needs, replaced at once: the totals always add up to ``since_ns - start_ns``.

    A signal handler that interrupts a change finds the state before it, and what it enters and leaves counts as the
    activity that it interrupted.
    """

    start_ns: int
    since_ns: int
    totals: dict[str, int]  # never changed
    between: str  # name of the time without an activity
    after_startup: str | None  # name that replaces it after startup; None when startup is over
    stack: tuple[tuple[int, str], ...]  # identities and names of the entered activities

    def current(self) -> str:
        return self.stack[-1][1] if self.stack else self.between

    def after(self, now_ns: int, between: str, after_startup: str | None, stack: tuple[tuple[int, str], ...]) -> _State:
        """Return the state after a change: the time up to now belongs to the current activity."""
        start_ns, since_ns, totals, *_ = self
        if now_ns > since_ns:
            name = self.current()
            totals = {**totals, name: totals.get(name, 0) + now_ns - since_ns}
            since_ns = now_ns
        return _State(start_ns, since_ns, totals, between, after_startup, stack)


class Activity:
    """One activity: a context manager and a decorator."""

    __slots__ = ("_activities", "_ends_startup", "_ignored", "name")

    def __init__(self, activities: Activities, name: str, *, ends_startup: bool) -> None:
        self._activities = activities
        self._ends_startup = ends_startup
        self._ignored = 0  # entered without effect, and not left yet
        self.name = name

    def __enter__(self) -> Activity:  # noqa: PYI034  typing.Self is 3.11's
        if not self._activities._enter(self):
            self._ignored += 1
        return self

    def __exit__(self, *_exception: object) -> None:
        if (self._ignored and not self._activities._is_owner()) or (
            not self._activities._leave(self) and self._ignored
        ):
            self._ignored -= 1

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = self._activities._decorate(function, self.name)
        return decorated

    def __del__(self) -> None:  # garbage-collected while it was entered: it is over
        while self._activities._leave(self):
            pass

    def __repr__(self) -> str:
        return f"activity({self.name!r})"


class Activities:
    """The activities of one thread, whose durations add up to the elapsed time.

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
        self.now = clock or _system_now
        self._names: dict[str, bool] = {}  # with True if the name ends startup
        self._lock = RLock()
        self._owner = 0
        self._ignored = 0
        self._state: _State | None = None

    def activity(self, name: str) -> Activity:
        """Return an activity with this name."""
        counted, ends_startup = self._counted(name)
        return Activity(self, counted, ends_startup=ends_startup)

    def begin(self, start_ns: int, first: str, later: str) -> None:
        """Start at a time, with names for the time without an activity: one during startup, and one after it."""
        first, later = self._counted(first)[0], self._counted(later)[0]
        with self._lock:
            start_ns = min(start_ns, self.now())
            self._owner = get_ident()
            self._ignored = 0
            self._state = _State(start_ns, start_ns, {}, first, later, ())

    def stop(self) -> None:
        """Ignore all activities until begin(). A forked child calls it, so it takes no lock."""
        self._lock = RLock()
        self._state = None

    def end_startup(self, name: str) -> None:
        """From now on time without an activity counts under this name, and the calling thread is the owner."""
        name = self._counted(name)[0]
        with self._lock:
            state = self._state
            owner, self._owner = self._owner, get_ident()
            if state is not None:  # the activities of a previous owner are now those of another thread
                self._state = state.after(self.now(), name, None, state.stack if owner == self._owner else ())

    def read(self) -> Read | None:
        """Return elapsed ns, ns by name, the current name and the number of ignored entries; None after stop()."""
        now_ns = self.now()
        state = self._state
        if state is None:
            return None
        name = state.current()
        _, since_ns, totals, *_ = state.after(now_ns, name, None, ())
        return since_ns - state.start_ns, totals if name in totals else {**totals, name: 0}, name, self._ignored

    def _counted(self, name: str) -> tuple[str, bool]:
        if type(name) is str and name in self._names:
            return name, self._names[name]
        counted, ends_startup = self._new_name(name)
        return counted, self._names.setdefault(counted, ends_startup)

    def _is_owner(self) -> bool:
        return self._owner == get_ident()

    def _enter(self, activity: Activity) -> bool:
        with self._lock:
            state = self._state
            if state is None:
                return False
            if not self._is_owner() or len(state.stack) == _DEPTH:
                self._ignored += 1
                return False
            between, after_startup = state.between, state.after_startup
            if after_startup is not None and activity._ends_startup:
                between, after_startup = after_startup, None
            stack = (*state.stack, (id(activity), activity.name))
            self._state = state.after(self.now(), between, after_startup, stack)
            return True

    def _leave(self, activity: Activity) -> bool:
        """Remove the innermost entry of an activity, and return True; False if there is none."""
        state = self._state
        if state is None or not state.stack:
            return False
        with self._lock:
            state = self._state
            if state is None:
                return False
            stack, identity = state.stack, id(activity)
            for index in range(len(stack) - 1, -1, -1):
                if stack[index][0] == identity:
                    remaining = stack[:index] + stack[index + 1 :]
                    self._state = state.after(self.now(), state.between, state.after_startup, remaining)
                    return True
            return False
