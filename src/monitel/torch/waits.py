"""Waits: torch's wait counters, waits that exceed a time limit, and the activity ``stuck``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import main_thread
from typing import Any, NamedTuple

from monitel import clock
from monitel.event import Severity
from monitel.handlers import emit
from monitel.process.crash_stacks import stacks_now
from monitel.process.os_threads import frames, get_ident, main_thread_pulse
from monitel.torch.hooks import Missing, Source, find
from monitel.torch.recording import context_at
from monitel.training import activities
from monitel.training.activities import Activity
from monitel.training.step import get_step
from monitel.wait_counter import (
    WaitReading,
    foreign_waits,
    set_foreign_waits,
    wait_counters,
    wait_keys,
    waits_in_flight,
)

Evidence = tuple[object, ...]

_log = logging.getLogger("monitel.torch")
_US_PER_S = 1_000_000
_POOL = "pytorch.wait_counter.subproc_pool"
_STATES = {f"{_POOL}.running", f"{_POOL}.quiesced"}  # states of the compiler's worker pool, counted while they last
_MAX_STACKTRACE = 32 << 10  # characters; Loki accepts 64 KB of attributes per log record
_FROM = frozenset(("startup", "init", "step", "other"))  # activities; a wait in another one belongs to that one


class WaitCounters(Source):
    """Adds torch's wait counters to :func:`monitel.wait_counters`. torch counts from its import on, in C++."""

    def install(self) -> None:
        self._read = _totals()
        self.poll()

    def poll(self) -> None:
        if not sys.is_finalizing():  # else torch's counters may be destroyed
            set_foreign_waits(self._read())

    def remove(self) -> None:
        """Keep the totals, which do not fall, without waits in progress."""
        set_foreign_waits({key: reading._replace(active=0) for key, reading in foreign_waits().items()})


def _totals() -> Callable[[], dict[str, WaitReading]]:
    """Return a function that reads torch's wait counters by the handler of its debug server, without a server."""
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
    """Waits of one key that are in flight. The times are those of the first poll with the same values."""

    count: int  # of its waits that have ended
    since_ns: int
    evidence: Evidence | None = None  # the same while the training thread is in one of the waits; None if it is not
    evidence_ns: int = 0
    reported: bool = False  # whether wait.stuck was logged


class _Stuck(NamedTuple):
    """A wait of the training thread that has exceeded the limit."""

    activity: Activity
    position: object  # of the thread in the ledger
    thread: int
    key: str
    evidence: Evidence


class StuckWaits(Source):
    """Reports waits that are in flight for too long: event ``wait.stuck`` and activity ``stuck``.

    A wait counter has no start times, so the duration is that since the first poll that found the wait in flight. The
    activity counts the time of the training thread if that is in the wait: it began the wait, or, if nobody knows the
    thread of the wait, it was at the same instructions at each poll, and has executed nothing in between.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: dict[str, _InFlight] = {}
        self._stuck: _Stuck | None = None

    def remove(self) -> None:
        stuck, self._stuck = self._stuck, None
        if stuck is not None:
            stuck.activity.__exit__(None, None, None)

    def poll(self) -> None:
        """Enter ``stuck`` or leave it, and log the waits that have exceeded the limit since the last poll."""
        now_ns, before, self._in_flight = clock.monotonic_ns(), self._in_flight, {}
        readings = wait_counters().items()
        counts = {key: reading.count for key, reading in readings if reading.active > 0 and key not in _STATES}
        if (stuck := self._stuck) is not None:
            evidence = _evidence(stuck.thread, stuck.key, counts.get(stuck.key))
            if (activities.position(), evidence) != (stuck.position, stuck.evidence):  # the thread has gone on
                self.remove()
        for key, count in counts.items():
            wait = self._in_flight[key] = before.get(key) or _InFlight(count, now_ns)
            if wait.count != count:
                wait.count, wait.since_ns, wait.reported = count, now_ns, False
            self._observe_training_thread(key, wait, now_ns)
        for key, wait in self._in_flight.items():
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

    def _observe_training_thread(self, key: str, wait: _InFlight, now_ns: int) -> None:
        """Note whether the training thread is in a wait, and enter ``stuck`` if it has been for too long."""
        thread, current, changed_ns = activities.position()
        evidence = None
        # There is no ledger, or the training thread polls, so it is not stuck, or it is known to be.
        if thread not in {0, get_ident()} and self._stuck is None:
            evidence = _evidence(thread, key, wait.count)
        known = None if evidence is None else (*evidence, changed_ns)
        if known != wait.evidence:
            wait.evidence, wait.evidence_ns = known, now_ns
        if evidence is not None and current in _FROM and now_ns - wait.evidence_ns >= self._seconds * 1e9:
            entered = activities.enter_for_owner("stuck", changed_ns)
            if entered is not None:  # else the thread has entered or left an activity just now
                self._stuck = _Stuck(entered, activities.position(), thread, key, evidence)


def _evidence(thread: int, key: str, ended: object) -> Evidence | None:
    """Return values that change when a thread goes on; None if a wait is not that of this thread."""
    if key not in wait_keys():
        executed = main_thread_pulse() if thread == main_thread().ident else None
        return get_step(), _instructions(thread), executed, ended
    starts = [start_ns for name, waiting, start_ns in waits_in_flight() if (name, waiting) == (key, thread)]
    return (get_step(), min(starts), None) if starts else None


def _instructions(thread: int) -> Evidence:
    found: list[object] = []
    with frames() as innermost:
        frame = innermost.get(thread)
        del innermost  # a cycle with the frame of this function
        while frame is not None:
            found += (id(frame), frame.f_lasti)
            frame = frame.f_back
    return tuple(found)
