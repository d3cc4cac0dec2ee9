"""The ledger: the wall-clock time of this process, divided into activities, of which there is exactly one at a time."""

from __future__ import annotations

import copyreg
import os
import time
from dataclasses import dataclass
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar

from monitel.attributes import checked_text
from monitel.clock import since_boot_ns
from monitel.decoration import decorated
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock, local
from monitel.training._activities import Activities, Activity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "ACTIVITIES",
    "Activity",
    "Ledger",
    "activity",
    "begin_shutdown",
    "begin_startup",
    "begin_steps",
    "enter_for_owner",
    "ledger",
    "position",
    "since_boot_ns",
    "stepping",
    "total_ns",
]

_Function = TypeVar("_Function", bound="Callable[..., Any]")

#: The activities that monitel itself uses, in the order in which they are shown.
ACTIVITIES = (
    *("startup", "init", "compile", "data", "step", "checkpoint.save", "checkpoint.load", "evaluation", "stuck"),
    *("other", "shutdown"),
)
#: The first other activity ends startup. A pipeline may shut down before the training begins.
_OF_STARTUP = {"startup", "init", "compile", "data", "checkpoint.load", "stuck", "shutdown"}
_NAMES = 64  # metrics have one series for each
_HOUR_NS = 3600 * 10**9

#: True from the first step of this process on.
stepping = False
#: True if the next step makes its thread the training thread: until the first step, and after that thread has ended.
vacant = True


@dataclass(frozen=True, slots=True)
class Ledger:
    """The time of this process up to one moment.

    Attributes:
        elapsed_ns: Nanoseconds since the start, suspended time included: the sum of ``activities``.
        activities: Nanoseconds of each activity so far, by name.
        current: Name of the activity at that moment.
        start_ns: The start, in nanoseconds since the Unix epoch.
        origin: The start: ``"process"``, ``"import"`` of monitel if the start of the process is not known, or
            ``"fork"``.
        ignored: Number of activities without effect: those of other threads than the training thread, and those
            nested more deeply than 256.
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


class _Untraced:
    """Takes the place of an activity while torch.compile traces the caller."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass

    def __call__(self, function: _Function) -> _Function:
        return function


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
    found = _activities.read()
    if found is None:
        return None
    elapsed_ns, activities, current, ignored = found
    shown = {name: activities[name] for name in ACTIVITIES if name in activities}
    return Ledger(elapsed_ns, shown | activities, current, *_start, ignored)


def begin_steps(*, take_over: bool = True) -> None:
    """End ``startup``, at the first step of this process, or the first one after the training thread has ended.

    Args:
        take_over: Make the calling thread the training thread. False if another thread waits for the step.
    """
    global stepping, vacant
    with _lock:
        if not vacant:  # another thread was first
            return
        if _forked_ns is not None:
            _begin(_forked_ns, "fork")
        if take_over:
            _thread.training = _Training()
        stepping, vacant = True, False
        _activities.end_startup("step", take_over)


def begin_startup() -> None:
    """Count time without an activity as ``startup`` again until the next step: another run of this process begins."""
    global vacant
    with _lock:
        _activities.begin_startup("startup", "other")
        vacant = True


def begin_shutdown(*, take_over: bool = True) -> None:
    """Count the time from now on as ``shutdown``, inside the activities that the end has interrupted. Idempotent.

    Exporters that end the run's telemetry call it: at the exit of the interpreter, or when SIGTERM has arrived. An
    activity that begins later, such as a last checkpoint, counts as usual. No effect in a forked child without steps.

    Args:
        take_over: Make the calling thread the training thread. False while the training thread may still run.
    """
    global _shutdown
    if _forked_ns is not None:
        return
    if take_over:
        _activities.end_startup("shutdown")
    if _shutdown is None:
        _shutdown = enter_for_owner("shutdown")


def enter_for_owner(name: str, changed_ns: int | None = None) -> Activity | None:
    """Enter an activity for the training thread, from any thread. It ends with ``__exit__()``, called by any thread.

    Args:
        name: As for :func:`activity`.
        changed_ns: The last item of :func:`position`: enter only if nothing has changed since then.

    Returns:
        The activity; None if something has changed, if activities are nested too deeply, or without a ledger.

    Raises:
        TypeError: The name is not a str.
        ValueError: An empty name.

    Example:
        >>> from monitel.training import activities
        >>> stuck = activities.enter_for_owner("stuck", activities.position()[2])
        >>> activities.position()[1]
        'stuck'
        >>> stuck.__exit__(None, None, None)
    """
    return _activities.enter_for_owner(name, changed_ns)


def total_ns(name: str) -> int:
    """Return the nanoseconds of one activity so far; 0 if there was none. It is faster than :func:`ledger`.

    Example:
        >>> from monitel.training import activities
        >>> activities.total_ns("no such activity")
        0
    """
    return _activities.total_ns(name)


def position() -> tuple[int, str, int]:
    """Return the training thread's identity, its current activity, and when that became the current one.

    The time is in nanoseconds of the ledger's clock. It is the same in two calls if no activity was entered or left
    between them. In a forked child without steps: ``(0, "", 0)``. Any thread may call it.

    Example:
        >>> import threading
        >>> from monitel.training import activities
        >>> activities.position()[0] == threading.main_thread().ident
        True
    """
    return _activities.position()


def current() -> tuple[str, float]:
    """Return the current activity of the training thread, and the seconds since it became the current one.

    In a forked child without steps the name is empty. Any thread may call it.

    Example:
        >>> from monitel.training import activities
        >>> name, seconds = activities.current()
        >>> name == activities.position()[1], seconds >= 0
        (True, True)
    """
    _, name, since_ns = position()
    return name, max(0, since_boot_ns() - since_ns) / 1e9


def _new_name(name: object) -> tuple[str, bool]:
    """Return the name under which a new name counts, and whether it ends startup."""
    global _own_names
    checked = checked_text("activity name", name)
    if not checked:
        raise ValueError("an activity's name must not be empty")
    if checked not in ACTIVITIES and checked not in _own_names:
        with _lock:
            if len(_own_names) >= _NAMES - len(ACTIVITIES):
                return "other", True
            if checked not in _own_names:
                _own_names = (*_own_names, checked)
    return checked, checked not in _OF_STARTUP


def _decorate(function: _Function, name: str) -> _Function:
    if not callable(function) or isinstance(function, (type, staticmethod, classmethod)):
        kind = type(function).__qualname__
        raise TypeError(f"activity({name!r}) decorates a function, got {kind}: {function!r:.80}")
    return decorated(function, lambda: activity(name))


def _process_start_ns() -> int | None:
    """Return the start of this process by the ledger's clock; None where it cannot be read, or is an hour ago.

    It includes what ran in the process before ``exec``. A process that has run for an hour before it imports monitel is
    a notebook or a server, whose past is not a start of this training.
    """
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  pathlib is not loaded for it
            after_name = file.read().rpartition(b")")[2].split()
        start_ns = int(after_name[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return start_ns if 0 <= since_boot_ns() - start_ns < _HOUR_NS else None


class _Training:
    """Lives as long as the training thread."""

    __slots__ = ()

    def __del__(self) -> None:
        global vacant
        vacant = True


class _Thread(local):
    training: _Training | None = None


def _begin(start_ns: int | None, origin: str) -> None:
    global _start, stepping, vacant, _forked_ns, _shutdown
    now_ns = since_boot_ns()
    begin_ns = now_ns if start_ns is None else start_ns
    _start = time.time_ns() - (now_ns - begin_ns), origin
    stepping, vacant, _forked_ns, _shutdown = False, True, None, None
    _activities.begin(begin_ns, "startup", "other")


def _stop_in_child() -> None:
    global _lock, stepping, vacant, _forked_ns
    _lock = RLock()
    stepping, vacant, _forked_ns = False, True, since_boot_ns()
    _activities.stop()


def _open() -> None:
    """Start the ledger of this process."""
    global _activities, _activity, _own_names
    _activities = Activities(_new_name, _decorate)
    _activity = _activities.activity
    _own_names = ()
    start_ns = _process_start_ns()
    _begin(start_ns, "import" if start_ns is None else "process")


def _reduced(made: Activity) -> tuple[Callable[[str], Activity], tuple[str]]:
    """Return what copies and pickles an activity: a new one with the same name, which is not entered."""
    return activity, (made.name,)


_lock = RLock()
_own_names: tuple[str, ...] = ()  # a tuple has no lock that a forked child could find locked
_thread = _Thread()
_activities: Activities
_activity: Callable[[str], Activity]
_start: tuple[int, str]
_shutdown: Activity | None
_forked_ns: int | None
_open()
copyreg.pickle(Activity, _reduced)
register_at_fork(after_in_child=_stop_in_child)
