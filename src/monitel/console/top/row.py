"""The row of one process: from the readings of its box, and from its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.activity import Stage, since_snapshot_ns
from monitel.console.autopsy.findings import Wait
from monitel.console.top.period import seconds_in_stage, time_between
from monitel.console.top.rank import Rank, RankState
from monitel.console.top.step_rate import RATE_NS
from monitel.training_time import DOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monitel.console.summary.report import Report
    from monitel.console.top.box_watch import BoxWatch

_SHARES_NS = 10 * 10**9
_SILENT_NS = 3 * 10**9
_OVERDUE = 10  # steps


class Doing(NamedTuple):
    """The activity of a process, now or at its end."""

    step: int | None = None
    step_age_ns: int | None = None
    activity: str = ""
    activity_age_ns: int | None = None
    waits: tuple[Wait, ...] = ()
    stage: Stage | None = None


NOTHING = Doing()


@dataclass(frozen=True)
class End:
    """The end of a process, or of its telemetry.

    Attributes:
        state: ``DEAD`` or ``ENDED``.
        how: How it died, in words; empty if it has not, or if that is unknown.
        status: ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty if it is not known.
        seen_ns: The death, or the last sign of life, Unix ns.
        doing: The activity of the process at that time.
    """

    state: RankState
    how: str = ""
    status: str = ""
    seen_ns: int = 0
    doing: Doing = NOTHING


def row_of(watch: BoxWatch, end: End | None, show: str | None, problem: str = "") -> Rank:
    """Return the row of a process.

    Args:
        watch: The readings of its box.
        end: Its end; None if it runs.
        show: The name of the number that the row shows; None for the usual one.
        problem: Why the box cannot be read now; empty if it can.
    """
    now_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    names, life = watch.identity, watch.history.life
    earlier = watch.history.earlier(_SHARES_NS)
    times = {} if life is None else time_between(earlier, life)
    rate = None
    if end is None:
        seen_ns = seen_ns_of(watch, now_ns, monotonic_ns)
        state = RankState.SILENT if now_ns - seen_ns > _SILENT_NS else RankState.ALIVE
        doing = doing_of(watch, now_ns, monotonic_ns)
        rate = _rate(watch, doing, monotonic_ns)
    else:
        seen_ns, state, doing = end.seen_ns, end.state, end.doing
    value = watch.numbers.value(show)
    return Rank(
        watch.path,
        pid=names.pid,
        host=names.host,
        job=watch.job,
        rank=names.rank,
        world_size=names.world_size,
        attempt=names.attempt,
        state=state,
        death="" if end is None else end.how,
        seen_ns=seen_ns,
        rate=rate,
        rates=tuple(watch.steps.rates),
        step_p50=watch.distribution.median,
        step_p99=watch.distribution.p99,
        data=_share(times, "data"),
        waiting=None if life is None else _waiting(times, seconds_in_stage(earlier, life, "sync")),
        goodput=_goodput(watch, life),
        value_name=value.name,
        value=value.value,
        event=watch.event,
        problem=problem,
        **doing._asdict(),
    )


def doing_of(watch: BoxWatch, now_ns: int, monotonic_ns: int) -> Doing:
    """Return what a process is doing, at a time by both clocks."""
    page, doing = watch.page, watch.record.doing
    step_age_ns = _step_age_ns(watch, now_ns, monotonic_ns)
    snapshot_ns = watch.record.snapshot_ns
    since_ns = since_snapshot_ns(now_ns, snapshot_ns, step_age_ns)
    if page.heartbeat_ns is not None:
        waits = [Wait(each.key, max(monotonic_ns - each.start_ns, 0), each.thread) for each in page.waits]
    else:
        waits = [
            Wait(str(key), round(seconds * 1e9) + since_snapshot_ns(now_ns, snapshot_ns, None), int(thread))
            for key, thread, seconds in doing.get("waits", ())
        ]
    activity, seconds = doing.get("activity") or ("", None)
    return Doing(
        last_step(watch),
        step_age_ns,
        str(activity),
        None if seconds is None else round(seconds * 1e9) + since_ns,
        longest_first(waits),
        Stage.of(doing, since_ns),
    )


def last_step(watch: BoxWatch) -> int | None:
    """Return the last step of a process; None if none was set."""
    if watch.page.step is not None:
        return watch.page.step
    step = watch.record.doing.get("step")
    return step if isinstance(step, int) else None


def longest_first(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """Return waits, the longest one first."""
    return tuple(sorted(waits, key=lambda wait: -wait.age_ns))


def usual_step(watch: BoxWatch) -> float | None:
    """Return the usual time of a step, seconds, without the time since the last one; None if it is not known."""
    life = watch.history.life
    if (median := watch.distribution.median) is not None or life is None:
        return median
    now_ns = time.time_ns()
    age_ns = _step_age_ns(watch, now_ns, time.monotonic_ns())
    stepping = life if age_ns is None else replace(life, observed=True, step_ns=now_ns - age_ns)
    return 1 / stepping.rate if stepping.rate else None


def _step_age_ns(watch: BoxWatch, now_ns: int, monotonic_ns: int) -> int | None:
    """Return the time since the last step was set; None if it is not known.

    If the step was set before the page was opened, it is the time since then: a process may hang in its first step.
    """
    page = watch.page
    if page.step_ns is not None:
        return max(monotonic_ns - page.step_ns, 0)
    return None if page.step is None else max(now_ns - watch.record.created_ns, 0)


def seen_ns_of(watch: BoxWatch, now_ns: int, monotonic_ns: int) -> int:
    """Return the last sign of life of a process, Unix ns, from a time by both clocks."""
    if watch.page.heartbeat_ns is None:
        return now_ns  # without a page there is no heartbeat: the lock shows that the process runs
    return now_ns - max(monotonic_ns - watch.page.heartbeat_ns, 0)


def _rate(watch: BoxWatch, doing: Doing, monotonic_ns: int) -> float | None:
    """Return the rate of the steps that were observed; before the first one that of the life of the process.

    A step that is overdue lowers the latter as it lowers the former: the ten seconds end now.
    """
    rate = watch.steps.rate(monotonic_ns)
    life = watch.history.life
    if rate is not None or life is None or life.rate is None:
        return rate
    age_ns = doing.step_age_ns or 0
    overdue = age_ns * life.rate > _OVERDUE * 1e9
    return life.rate * max(RATE_NS - age_ns, 0) / RATE_NS if overdue else life.rate


def _share(times: Mapping[str, int], activity: str) -> float | None:
    """Return the share of an activity in the time of a process."""
    elapsed_ns = sum(times.values()) - times.get(DOWN, 0)
    return times.get(activity, 0) / elapsed_ns if elapsed_ns > 0 else None


def _waiting(times: Mapping[str, int], sync_seconds: float | None) -> float | None:
    """Return the share of waits for other ranks: those that have ended, or those that are stuck, if they are longer."""
    stuck = _share(times, "stuck")
    if stuck is None or (sync_seconds is None and not stuck):
        return None
    ended = (sync_seconds or 0.0) * 1e9 / (sum(times.values()) - times.get(DOWN, 0))
    return min(max(ended, stuck), 1.0)


def _goodput(watch: BoxWatch, life: Report | None) -> float | None:
    """Return the goodput of the run over all attempts; that of the process, as long as it has not described itself."""
    found: Any = watch.record.doing.get("goodput")
    if isinstance(found, float):
        return found
    return _share(life.activities, "step") if life is not None and "step" in life.activities else None
