"""The verdict about a job: the first rule that applies."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from monitel.console.text import duration
from monitel.console.verdict.endings import ended_badly
from monitel.console.verdict.facts import JobFacts, usual_step
from monitel.console.verdict.losses import (
    ENOUGH_STEPS,
    checkpoint_bound,
    compared,
    compile_storm,
    data_share,
    input_bound,
    late_rank,
    measured,
    stuck_for_long,
)
from monitel.console.verdict.result import Verdict, named, verb
from monitel.console.verdict.standstill import STOPPED, ended_without_steps, silent, standing_still

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel.console.verdict.facts import RankFacts

__all__ = ["Verdict", "verdict"]

_NOT_STARTING = frozenset({"", "other", "shutdown"})  # activities of a process without steps
_FAST = 100  # steps per second, from which on a rate has no decimals
_OVERDUE_NS, _OVERDUE_STEPS = 5 * 10**9, 10  # without a step, after which a rate would be wrong
_BEGINS_NS = 10 * 10**9  # within which a process has not set a step yet
_STEPS = "call monitel.set_step(), or monitel.torch.instrument()"


def verdict(ranks: Iterable[RankFacts]) -> Verdict:
    """Return the verdict about a job.

    Args:
        ranks: The processes of one attempt of one job that were found on this machine, in any order.
    """
    job = JobFacts.of(ranks)
    for rule in (
        *(ended_badly, silent, standing_still, ended_without_steps, stuck_for_long, _starting),
        *(compile_storm, late_rank, input_bound, checkpoint_bound, _unknown),
    ):
        found = rule(job)
        if found is not None:
            return found
    return _healthy(job)


def _starting(job: JobFacts) -> Verdict | None:
    """Return the verdict about a job of which no process has made a step yet; None if one has."""
    starting = [each for each in job.running if each.activity not in _NOT_STARTING or _begins(each)]
    if not starting or any(each.step is not None or each.steps for each in job.processes):
        return None
    activities: dict[str, list[RankFacts]] = {}
    for each in starting:
        activities.setdefault("" if each.activity in _NOT_STARTING else each.activity, []).append(each)
    parts = []
    for activity, processes in sorted(activities.items(), key=lambda each: -len(each[1])):
        ages = [age_ns for each in processes if (age_ns := _starting_ns(each)) is not None]
        since = f" for {duration(max(ages))}" if ages else ""
        doing = "been starting" if activity in {"", "startup"} else f"been in {activity}"
        parts.append(f"{named(processes)} {verb(processes, 'has', 'have')} {doing}{since}")
    return Verdict("starting", f"starting: {', '.join(parts[:3])}{job.elsewhere}", stage=starting[0].activity)


def _begins(process: RankFacts) -> bool:
    """Return True if a process without an activity is so young that it may have none yet."""
    return process.activity == "" and process.age_ns is not None and process.age_ns < _BEGINS_NS


def _starting_ns(process: RankFacts) -> int | None:
    """Return the time of the activity; of ``startup``, which may be the rest after ``init``, the whole time so far."""
    if process.activity == "":
        return process.age_ns
    if process.activity != "startup":
        return process.activity_age_ns
    times = [process.activity_age_ns, process.age_ns, sum(process.activities.values()) or None]
    return max((each for each in times if each is not None), default=None)


def _unknown(job: JobFacts) -> Verdict | None:
    """Return the verdict about a job with too few facts, and how to get them; None if there are enough."""
    if not any(each.steps or each.step is not None for each in job.processes):
        return Verdict("unknown", f"unknown: no step was set; {_STEPS}{job.elsewhere}")
    enough = measured(job)
    if not enough:
        most = max(each.steps for each in job.processes)
        steps = f"{most} step{'' if most == 1 else 's'}{'' if job.over else ' so far'}"
        return Verdict("unknown", f"unknown: {steps}, a verdict needs {ENOUGH_STEPS} steps{job.elsewhere}")
    if all(data_share(each) is None for each in enough):
        return Verdict("unknown", f"unknown: {_pace(job)}, without a ledger or stages; {_STEPS}{job.elsewhere}")
    ranks = {each.rank for each in enough if each.rank is not None}
    if len(ranks) > 1 and not compared(job):
        remedy = "late ranks are not known without stages; call monitel.torch.instrument()"
        return Verdict("unknown", f"unknown: {_pace(job)}, no loss found, but {remedy}{job.elsewhere}")
    stopped = [each for each in job.processes if each.status in STOPPED]
    if job.over and stopped and all(each.step_age_ns is None for each in stopped):
        text = f"unknown: {_pace(job)}, no loss found; {_statuses(job)}, the time since the last step is not known"
        return Verdict("unknown", f"{text}{job.elsewhere}")
    return None


def _healthy(job: JobFacts) -> Verdict:
    shares = [share for each in measured(job) if (share := data_share(each)) is not None]
    waiting = f", {100 * median(shares):.0f} % waiting for data" if shares else ""
    ended = f"; {statuses}" if (statuses := _statuses(job)) else ""
    return Verdict("healthy", f"healthy: {_pace(job)}{waiting}{ended}{job.elsewhere}")


def _statuses(job: JobFacts) -> str:
    return " and ".join(sorted({each.status for each in job.processes} - {"", "completed"}))


def _pace(job: JobFacts) -> str:
    """Return the number of ranks, and steps per second."""
    processes = measured(job)
    ranks = f"{len(processes):,} {'ranks' if all(each.rank is not None for each in processes) else 'processes'}, "
    ranks = ranks if len(processes) > 1 else ""
    if overdue := [each for each in processes if _is_overdue(each)]:
        since = duration(min(each.step_age_ns or 0 for each in overdue))
        of = f" of {named(overdue)}" if len(overdue) < len(processes) else ""
        return f"{ranks}no step{of} for {since}"
    rates = [rate for each in processes if (rate := _rate(each)) is not None]
    if not rates:
        return f"{ranks}step rate unknown"
    rate = median(rates)
    return f"{ranks}{f'{1 / rate:,.3g} s per step' if rate < 1 else f'{rate:,.{2 if rate < _FAST else 0}f} steps/s'}"


def _is_overdue(process: RankFacts) -> bool:
    usual = usual_step(process)
    if process.state not in {"alive", "silent"} or process.step_age_ns is None or usual is None:
        return False
    return process.step_age_ns > max(_OVERDUE_NS, _OVERDUE_STEPS * usual * 1e9)


def _rate(process: RankFacts) -> float | None:
    rate = process.rate
    if rate is None or not 0 < rate < math.inf:
        usual = usual_step(process)
        rate = None if usual is None else 1 / usual
    return rate if rate is not None and 0 < rate < math.inf else None
