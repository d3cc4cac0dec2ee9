"""Description of a process: its step, waits in flight, open ranges, and the activity of its training thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import monitel
from monitel.blackbox.context_page import Context, own_page, quantile
from monitel.process.fork import register_at_fork
from monitel.process.launcher import distributed_rank
from monitel.training.activities import Stage, current, position, stage_now
from monitel.training.counters import goodput
from monitel.training.step import first_step, made_steps
from monitel.wait_counter import waits_in_flight

MOST_IN_PROGRESS = 100  # waits, and open ranges
_LONGEST_NAME = 1_000  # characters
_SHUTDOWN = "shutdown"

_last: tuple[int, dict[str, Any]] | None = None  # monotonic time, and the description of that moment
_before: tuple[int, dict[str, Any]] | None = None  # the same, before the shutdown
_member: tuple[int, int] | None = None  # of torch.distributed, even after its end


class Wait(NamedTuple):
    """A wait, or a range, in progress: key of the wait counter, or name of the range, and the time since its begin."""

    key: str
    age_ns: int
    thread: int = 0  # 0 if it is unknown


class Doing(NamedTuple):
    """The activity of a process at one moment: times are ns before it, and the longest wait is the first."""

    step: int | None = None
    step_age_ns: int | None = None
    activity: str = ""
    activity_age_ns: int | None = None
    stage: Stage | None = None
    waits: tuple[Wait, ...] = ()
    ranges: tuple[Wait, ...] = ()


def doing_at(at_ns: int, doing: Mapping[str, Any], snapshot_ns: int | None, page: Context) -> Doing:
    """Return what a process did at a time, Unix ns, by its snapshot and its page, which is newer.

    The activity and the stage of the snapshot have lasted until then, unless a step was set since.
    """
    since_ns = 0 if snapshot_ns is None else max(at_ns - snapshot_ns, 0)

    def age_ns(monotonic_ns: int | None) -> int | None:
        began_ns = None if monotonic_ns is None else page.unix_ns(monotonic_ns)
        return None if began_ns is None else max(at_ns - began_ns, 0)

    def grown_ns(seconds: float) -> int:
        return round(seconds * 1e9) + since_ns

    step, seconds = doing.get("step"), doing.get("step_seconds")
    step_age_ns = None if seconds is None else grown_ns(seconds)
    waits = [Wait(key, grown_ns(seconds), thread) for key, thread, seconds in doing.get("waits", ())]
    if page.heartbeat_ns is not None:
        step, step_age_ns = step if page.step is None else page.step, age_ns(page.step_ns)
        waits = [Wait(each.key, age_ns(each.start_ns) or 0, each.thread) for each in page.waits]
    ranges = tuple(Wait(name, grown_ns(seconds)) for name, seconds in doing.get("ranges", ()))
    if step_age_ns is not None and step_age_ns < since_ns:
        since_ns = 0  # a step was set since
    activity, seconds = doing.get("activity") or ("", None)
    activity_age_ns = None if seconds is None else grown_ns(seconds)
    stage = None
    if doing.get("stage"):
        name, is_waiting, stage_seconds, thread = doing["stage"]
        stage = Stage(name, is_waiting, grown_ns(stage_seconds), thread)
    longest_first = tuple(sorted(waits, key=lambda wait: -wait.age_ns))
    return Doing(step, step_age_ns, activity, activity_age_ns, stage, longest_first, ranges)


def describe(ranges: Sequence[tuple[str, float]] = ()) -> dict[str, Any]:
    """Return what this process is doing, as ``doing`` in :mod:`monitel.blackbox.forms`. Long names are cut.

    Open ranges are given by name and seconds so far.
    """
    global _last, _before, _member
    now_ns = time.monotonic_ns()
    stage, page = stage_now(), own_page()
    times = page.step_times
    waits = waits_in_flight()[:MOST_IN_PROGRESS]
    activity, activity_seconds = current()
    _member = distributed_rank() or _member
    found = {
        "step": monitel.get_step() if made_steps() else None,  # a forked child begins with that of its parent
        "step_seconds": None if page.step_ns is None else max(now_ns - page.step_ns, 0) / 1e9,
        "first_step": first_step(),
        "made": made_steps(),
        "timed": sum(times),
        "step_p50": quantile(times, 0.5),
        "waits": [(key[:_LONGEST_NAME], int(thread), (now_ns - start_ns) / 1e9) for key, thread, start_ns in waits],
        "ranges": [(name[:_LONGEST_NAME], seconds) for name, seconds in ranges[:MOST_IN_PROGRESS]],
        "activity": (activity[:_LONGEST_NAME], activity_seconds),
        "thread": position()[0],
        "stage": None if stage is None else (stage.name, stage.waits, stage.age_ns / 1e9, stage.thread),
        "goodput": goodput(),
        "member": _member,
    }
    _last = now_ns, found
    if activity != _SHUTDOWN:
        _before = _last
    return found


def at_shutdown() -> tuple[dict[str, Any], int]:
    """Return what this process was doing when its shutdown began, as :func:`describe` does, and that time, Unix ns.

    Activity, stage and waits are those of the last snapshot before, because the end of a program leaves them. A step
    that was made since has ended them.
    """
    activity, seconds = current()
    now_ns = time.monotonic_ns()
    began_ns = now_ns - round(seconds * 1e9) if activity == _SHUTDOWN else now_ns
    looked_ns, last = _last or (now_ns, describe())
    before_ns, before = _before or (began_ns, {})
    since_s = max(began_ns - before_ns, 0) / 1e9
    step_s = last["step_seconds"]
    step_s = None if step_s is None else max(step_s - (looked_ns - began_ns) / 1e9, 0.0)
    lasts = step_s is None or step_s >= since_s
    name, activity_s = before.get("activity") or ("", 0.0)
    *stage, stage_s, thread = before.get("stage") or ("", False, 0.0, 0)
    found = {
        **last,
        "step_seconds": step_s,
        "waits": [(key, of, waited_s + since_s) for key, of, waited_s in before.get("waits", ()) if lasts],
        "ranges": [],
        "activity": (name, activity_s + since_s * lasts),
        "stage": (*stage, stage_s + since_s * lasts, thread) if stage[0] else None,
    }
    return found, time.time_ns() - (now_ns - began_ns)


def _forget() -> None:
    """Leave what the parent did to it, in a forked child."""
    global _last, _before, _member
    _last = _before = _member = None


register_at_fork(after_in_child=_forget)
