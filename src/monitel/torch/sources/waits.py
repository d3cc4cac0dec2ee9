"""Waits: torch's wait counters, waits that exceed a time limit, and the activity ``stuck``."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from threading import main_thread
from typing import TYPE_CHECKING, Any

from monitel import activities, clock, wait_counter
from monitel.crash_stacks import stacks_now
from monitel.event import Severity
from monitel.handlers import emit
from monitel.os_threads import Event, Thread, frames, get_ident, main_thread_pulse
from monitel.step import get_step
from monitel.torch.hooks import Missing, Source, find
from monitel.torch.recording import context_at
from monitel.wait_counter import WaitReading, wait_counters, waits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel.activities import Activity

    Evidence = tuple[object, ...]

_log = logging.getLogger("monitel.torch")
_US_PER_S = 1_000_000
_POOL = "pytorch.wait_counter.subproc_pool"
_STATES = {f"{_POOL}.running", f"{_POOL}.quiesced"}  # states of the compiler's worker pool, counted while they last
_MAX_STACKTRACE = 32 << 10  # characters; Loki accepts 64 KB of attributes per log record
_FROM = frozenset(("startup", "init", "step", "other"))  # activities; a wait in another one belongs to that one
_INTERVAL_S = 0.25


class WaitCounters(Source):
    """Adds torch's wait counters to :func:`monitel.wait_counters`: collective set-up, stores, compilers, file locks.

    torch counts from its import on, in C++, so waits before ``install()`` and waits in C++ are included.
    """

    def install(self) -> None:
        """Add the source."""
        self._read: Callable[[], dict[str, WaitReading]] | None = _totals()
        wait_counter.add_source(self._readings)

    def remove(self) -> None:
        """Remove the source. Its final readings are kept."""
        wait_counter.remove_source(self._readings)

    def _readings(self) -> dict[str, WaitReading]:
        if self._read is None or sys.is_finalizing():  # torch's counters may be destroyed by then
            return {}
        try:
            return self._read()
        except Exception:
            self._read = None
            _log.warning("torch's wait counters cannot be read any more and are left out", exc_info=True)
            return {}


def _totals() -> Callable[[], dict[str, WaitReading]]:
    """Return a function that reads torch's wait counters, including those of C++, by key.

    torch's debug server has a handler that writes the counters as JSON (torch 2.10 and later). The function calls it
    without a server, with a request and a response defined here.
    """
    handler = find("torch._C._distributed_c10d", "_get_handler")
    request_class: Any = find("torch._C._distributed_c10d", "_Request")
    response_class: Any = find("torch._C._distributed_c10d", "_Response")

    class Response(response_class):  # type: ignore[misc]
        content: str | bytes = ""

        def set_content(self, content: str | bytes, content_type: str) -> None:  # noqa: ARG002  torch's signature
            self.content = content

        def set_status(self, status: int) -> None:
            """Ignore the status; only the content is used."""

    class Request(request_class):  # type: ignore[misc]
        def body(self) -> bytes:
            return b""

        def get_param(self, name: str) -> str:  # noqa: ARG002  torch's signature
            return ""

    try:
        write = handler("wait_counter_values")
    except ValueError as error:
        raise Missing(str(error)) from error

    def read() -> dict[str, WaitReading]:
        response = Response()
        write(Request(), response)
        return {
            key: WaitReading(
                totals["total_calls"] - totals["active_count"],  # torch counts a wait when it begins
                totals["total_time_us"] / _US_PER_S,
                totals["max_time_us"] / _US_PER_S,
                totals["active_count"],
            )
            for key, totals in json.loads(response.content).items()
        }

    try:
        read()
    except Exception as error:
        raise Missing(f"the handler wait_counter_values returns another format: {error!r}") from error
    return read


@dataclass
class _InFlight:
    count: int
    since_ns: int
    reported: bool = False


class StuckWaits(Source):
    """Logs ``wait.stuck``, a WARN event with all stacks, once for each wait that is in flight for too long.

    A wait counter has the number of waits in flight, but not their start times. So the duration is measured from the
    first poll that found a wait of the key in flight, and restarts when any wait of the key ends: a stuck wait is not
    detected while other waits of its key come and go. :class:`StuckActivity` counts the time in the ledger.

    Args:
        seconds: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: dict[str, _InFlight] = {}
        self._activity = StuckActivity(seconds)

    def remove(self) -> None:
        """End the activity ``stuck``."""
        self._activity.remove()

    def poll(self) -> None:
        """Log the waits that have exceeded the limit since the last poll."""
        now_ns, before, self._in_flight = clock.monotonic_ns(), self._in_flight, {}
        readings = wait_counters().items()
        waits = {key: reading.count for key, reading in readings if reading.active > 0 and key not in _STATES}
        self._activity.poll(waits, now_ns)
        for key, count in waits.items():
            wait = before.get(key)
            if wait is None or wait.count != count:
                wait = _InFlight(count, now_ns)
            self._in_flight[key] = wait
            seconds = (now_ns - wait.since_ns) / 1e9
            if seconds >= self._seconds and not wait.reported:
                wait.reported = True
                message = f"stuck in {key} for {seconds:.0f} s"
                data = {
                    "message": message,
                    "wait.key": key,
                    "wait.duration": seconds,
                    "code.stacktrace": stacks_now(_MAX_STACKTRACE),
                    **context_at(get_step()),
                }
                emit("wait.stuck", data, severity=Severity.WARN)


class StuckActivity:
    """Counts the time of the training thread as ``stuck`` from the time limit of a wait on.

    A wait is that of the training thread if

    * it is of monitel's own counters and was begun by this thread, or
    * it is of another source, whose waits have no thread, and this thread has not left its call of a function: at each
      poll since the first one that found the wait, all of its frames were at the same instructions. The main thread
      has also executed nothing in between: another thread may wait while it repeats a long call.

    In addition the thread has made no step since then, and entered and left no activity. What was counted before is not
    changed. ``stuck`` ends, at most a quarter of a second later, when any of this changes. A separate thread checks it
    while ``stuck`` lasts: a poll may hang in an event handler.

    Args:
        seconds: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._limit_ns = seconds * 1e9
        self._since: dict[str, tuple[Evidence, int]] = {}
        self._entered: _Stuck | None = None

    def poll(self, waits: Mapping[str, int], now_ns: int) -> None:
        """Enter ``stuck`` or leave it.

        Args:
            waits: The keys of waits in flight, each with the number of its waits that have ended.
            now_ns: The time, monotonic.
        """
        if self._entered is not None:
            if self._entered.is_over(waits):
                self.remove()
            return
        thread, current, changed_ns = activities.position()
        if thread in {0, get_ident()}:  # there is no ledger, or the training thread polls, so it is not stuck
            self._since.clear()
            return
        before, self._since = self._since, {}
        for key, ended in waits.items():
            evidence = _evidence(thread, key, ended)
            if evidence is None:
                continue
            evidence = (*evidence, changed_ns)
            known, since_ns = before.get(key, (None, 0))
            self._since[key] = evidence, since_ns if known == evidence else now_ns
        if current in _FROM:
            for key, (evidence, since_ns) in self._since.items():
                if now_ns - since_ns >= self._limit_ns:
                    self._enter(thread, key, evidence[:-1], changed_ns)
                    return

    def remove(self) -> None:
        """Leave ``stuck``."""
        self._since.clear()
        if self._entered is not None:
            self._entered.leave()
            self._entered = None

    def _enter(self, thread: int, key: str, evidence: Evidence, changed_ns: int) -> None:
        entered = activities.enter_for_owner("stuck", changed_ns)
        if entered is not None:  # else the thread has entered or left an activity just now
            self._entered = _Stuck(entered, thread, key, evidence)
            self._entered.watch()


class _Stuck:
    """The activity ``stuck`` of one wait."""

    def __init__(self, activity: Activity, thread: int, key: str, evidence: Evidence) -> None:
        self._activity = activity
        self._thread = thread
        self._key = key
        self._evidence = evidence
        self._position = activities.position()
        self._left = Event()

    def watch(self) -> None:
        """Leave as soon as the wait is over, in a thread."""
        try:
            Thread(target=self._run, name="monitel-stuck", daemon=True).start()
        except RuntimeError:  # the process ends, or cannot have more threads
            self.leave()

    def is_over(self, waits: Mapping[str, int] | None = None) -> bool:
        """Return whether the training thread has gone on.

        Args:
            waits: As for :meth:`StuckActivity.poll`; None if they are not known.
        """
        ended = self._evidence[-1] if waits is None else waits.get(self._key)
        return (
            self._left.is_set()
            or activities.position() != self._position
            or _evidence(self._thread, self._key, ended) != self._evidence
        )

    def leave(self) -> None:
        """Leave the activity. Idempotent."""
        self._left.set()
        self._activity.__exit__(None, None, None)

    def _run(self) -> None:
        while not self._left.wait(_INTERVAL_S):
            if self.is_over():
                self.leave()


def _evidence(thread: int, key: str, ended: object) -> Evidence | None:
    """Return values that change when a thread goes on; None if a wait is not that of this thread."""
    waits = waits_of(thread)
    if key not in waits:
        executed = main_thread_pulse() if thread == main_thread().ident else None
        return get_step(), _instructions(thread), executed, ended
    return None if waits[key] is None else (get_step(), waits[key], None)


def _instructions(thread: int) -> Evidence:
    """Return the frames of a thread, each with the instruction that it executes."""
    found: list[object] = []
    frame = frames().get(thread)
    while frame is not None:
        found += (id(frame), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)
