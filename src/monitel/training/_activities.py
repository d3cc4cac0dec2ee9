"""The activities of one thread, which divide its time without gap or overlap.

Any thread may call, and a signal handler or a destructor may run at each call, but not between other statements: what
belongs together is therefore changed without a call in between.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from monitel.clock import since_boot_ns
from monitel.process.os_threads import RLock, get_ident

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Activities", "Activity"]

_DEPTH = 256  # of nested activities; deeper ones are ignored


class _Entry:
    """An activity on the stack. It does not keep its :class:`Activity` alive, whose end is that of the activity."""

    __slots__ = ("ends_startup", "entered", "ignored", "name")

    def __init__(self, name: str, ends_startup: bool) -> None:
        self.name = name
        self.ends_startup = ends_startup
        self.entered = 0  # how often it is on the stack
        self.ignored = 0  # how often it was entered without effect, and not left yet


class Activity:
    """One activity: a context manager and a decorator."""

    __slots__ = ("_activities", "_entry", "name")

    def __init__(self, activities: Activities, name: str, ends_startup: bool) -> None:
        self._activities = activities
        self._entry = _Entry(name, ends_startup)
        self.name = name

    def __enter__(self) -> Activity:  # noqa: PYI034  typing.Self is 3.11's
        activities = self._activities
        with activities._lock:
            if get_ident() == activities._owner:
                activities._enter(self._entry)
            else:
                activities._ignore(self._entry)
        return self

    def __exit__(self, *_exception: object) -> None:
        activities, entry = self._activities, self._entry
        with activities._lock:
            if entry.entered and not (entry.ignored and get_ident() != activities._owner):
                activities._leave(entry)
            elif entry.ignored:
                entry.ignored -= 1

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        decorated: Callable[..., Any] = self._activities._decorate(function, self.name)
        return decorated

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave: it was garbage-collected while it was entered. At the end of the interpreter, globals are None."""
        entry = self._entry
        while entry.entered and not is_ending():
            with self._activities._lock:
                self._activities._leave(entry)

    def __repr__(self) -> str:
        return f"activity({self.name!r})"


class Activities:
    """The activities of one thread, whose durations add up to the elapsed time.

    Args:
        new_name: Called with a name that is new: returns the name under which it counts, and whether it ends startup.
        decorate: Called with a function and a name, by the decorator.
        clock: Returns nanoseconds; by default those since the system was started, suspended time included.
    """

    _after_startup: str | None  # the name that replaces _between after startup; None when startup is over

    def __init__(
        self,
        new_name: Callable[[object], tuple[str, bool]],
        decorate: Callable[[Callable[..., Any], str], Callable[..., Any]],
        clock: Callable[[], int] = since_boot_ns,
    ) -> None:
        self._new_name = new_name
        self._decorate = decorate
        self._now = clock
        self._names: dict[str, bool] = {}  # with True if the name ends startup
        self.stop()

    def activity(self, name: str) -> Activity:
        """Return an activity with this name."""
        return Activity(self, *self._counted(name))

    def begin(self, start_ns: int, first: str, later: str) -> None:
        """Start at a time, with names for the time without an activity: one during startup, and one after it."""
        self.stop()
        self._between, self._after_startup = self._counted(first)[0], self._counted(later)[0]
        self._since_ns = self._changed_ns = min(start_ns, self._now())
        self._owner = get_ident()

    def stop(self) -> None:
        """Ignore all activities until begin(). A forked child calls it, so it takes no lock."""
        self._lock = RLock()  # again by a signal handler or a destructor
        self._owner = self._since_ns = self._changed_ns = self._ignored = 0
        self._totals: dict[str, int] = defaultdict(int)  # nanoseconds by name, up to since_ns
        self._between = ""  # the name of the time without an activity
        self._after_startup = None
        self._stack: list[_Entry] = []

    def begin_startup(self, first: str, later: str) -> None:
        """From now on time without an activity has the names of a start again."""
        first, later = self._counted(first)[0], self._counted(later)[0]
        with self._lock:
            if self._owner:
                self._advance()
                self._between, self._after_startup, self._changed_ns = first, later, self._since_ns

    def end_startup(self, name: str, take_over: bool = True) -> None:
        """From now on time without an activity counts under this name; the calling thread takes over."""
        name = self._counted(name)[0]
        with self._lock:
            if not self._owner:
                return
            self._advance()
            self._between, self._after_startup, self._changed_ns = name, None, self._since_ns
            if take_over and self._owner != get_ident():
                self._owner, stack, self._stack = get_ident(), self._stack, []
                for entry in stack:  # now they are activities of another thread
                    entry.ignored, entry.entered = entry.ignored + entry.entered, 0

    def enter_for_owner(self, name: str, changed_ns: int | None = None) -> Activity | None:
        """Enter an activity for the owner; None if it has changed since the time that position() has returned."""
        activity = self.activity(name)
        with self._lock:
            if not self._owner or changed_ns not in {None, self._changed_ns}:
                return None
            return activity if self._enter(activity._entry) else None

    def position(self) -> tuple[int, str, int]:
        """Return the owner, its current activity, and when that began; zeros after stop()."""
        with self._lock:
            return self._owner, self._current(), self._changed_ns

    def read(self) -> tuple[int, dict[str, int], str, int] | None:
        """Return elapsed ns, ns by name, the current name and the number of ignored entries; None after stop()."""
        with self._lock:
            if not self._owner:
                return None
            self._advance()
            current, totals, ignored = self._current(), {**self._totals}, self._ignored
        totals.setdefault(current, 0)
        return sum(totals.values()), totals, current, ignored

    def total_ns(self, name: str) -> int:
        """Return the nanoseconds of one activity so far; 0 if there was none."""
        with self._lock:
            if self._owner:
                self._advance()
            return self._totals.get(name, 0)

    def _counted(self, name: str) -> tuple[str, bool]:
        if type(name) is str and name in self._names:
            return name, self._names[name]
        counted, ends_startup = self._new_name(name)
        return counted, self._names.setdefault(counted, ends_startup)

    def _current(self) -> str:
        return self._stack[-1].name if self._stack else self._between

    def _advance(self) -> None:
        """Count the time up to now for the current activity."""
        now_ns = self._now()
        if now_ns > self._since_ns:
            name = self._stack[-1].name if self._stack else self._between
            self._totals[name] += now_ns - self._since_ns
            self._since_ns = now_ns

    def _enter(self, entry: _Entry) -> bool:
        """Enter an activity, and return True; False if activities are nested too deeply."""
        if len(self._stack) >= _DEPTH:
            return self._ignore(entry)
        self._advance()
        if entry.ends_startup and self._after_startup is not None:
            self._between, self._after_startup = self._after_startup, None
        entry.entered += 1
        self._changed_ns = self._since_ns
        self._stack.append(entry)
        return True

    def _ignore(self, entry: _Entry) -> bool:
        self._ignored += 1
        entry.ignored += 1
        return False

    def _leave(self, entry: _Entry) -> None:
        """Remove the innermost entry of an activity; an interrupt before that leaves it entered."""
        if self._owner:
            self._advance()
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is entry:
                self._changed_ns = self._since_ns
                del self._stack[index]
                break
        entry.entered -= 1
