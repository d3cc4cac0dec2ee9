"""The verdict about a job: the first rule that applies, the same while the job runs and at its end.

The rules are those of docs/reference/verdicts.md. They are about the processes of one attempt: all of them over the
same period.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from monitel.console.lateness import STAGES
from monitel.console.standstill import STUCK, Standstill, for_longest, shared_waits, since_ns_of, stands_still
from monitel.runs.process import COMPLETED, EXITED, STOPPED, State
from monitel.text import duration, named, percent, step_rate, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.job import Job
    from monitel.runs.process import Process


class Verdict(NamedTuple):
    """The verdict about a job.

    Attributes:
        kind: The rule that applies.
        text: One line in plain English. Names in it come from the job: print it with ``Screen.printable``.
        rank: The rank that it is about; None if it is about no rank, or about several ones.
        stage: The stage, activity or key of a wait that it is about; empty if there is none.
        seconds: Lateness per step, or time for which the job stands still; None if there is none.
        share: The share of the time that is lost, 0 to 1; None if there is none.
    """

    kind: str
    text: str
    rank: int | None = None
    stage: str = ""
    seconds: float | None = None
    share: float | None = None


def verdict(job: Job) -> Verdict:
    """Return the verdict about a job."""
    rules = (
        *(_ended_badly, _silent, _standing_still, _stuck_for_long, _starting),
        *(_compile_storm, _late_rank, _input_bound, _checkpoint_bound, _unknown, _healthy),
    )
    found = next(found for rule in rules if (found := rule(job)) is not None)
    return found._replace(text=f"{found.text}{_elsewhere(job)}")


def _elsewhere(job: Job) -> str:
    """Return a remark in parentheses if not all ranks of the job were found."""
    found, world = len({each.rank for each in job.counted} - {None}), job.world_size
    others = "" if job.over else ", the others elsewhere or ended"
    return f" ({found:,} of {world:,} ranks found here{others})" if 0 < found < world else ""


# ---- dead, failed, ended

_BEATS_NS = 2 * 10**9  # by which the last sign of life may be before the end
_LONGEST_FAILURE = 200  # characters


def _ended_badly(job: Job) -> Verdict | None:
    """The first process that has ended without completing.

    A process whose end is not known is the first one only if it has ended seconds before the others.
    """
    bad = [each for each in job.counted if each.state is State.DEAD or each.status == "failed"]
    until = min((_order(each) for each in bad), default=None)
    left = [each for each in job.counted if _has_exited(each) and (_order(each) < until if until else job.running)]
    unknown = _of_unknown_end(job)
    known = [*bad, *left]
    ended = [*known, *unknown]
    if not ended:
        return None
    first = min(ended, key=lambda each: _order(each, _BEATS_NS if known and each in unknown else 0))
    alike = [each for each in ended if _how(each) == _how(first)]
    text = f"{named(alike)} {_how(first)}"
    text += " before the first step" if first.step is None else f" at step {first.step:,}"
    if first.status == "failed" and first.failure:
        text += f": {first.failure[:_LONGEST_FAILURE]}"
    if len(alike) > 1 and first.seen_ns > 0 and first not in unknown:
        text += f", {named([first])} first"
    kind = "dead" if first.state is State.DEAD else "failed" if first.status == "failed" else "ended"
    if kind == "ended" and first.silent_ns:
        text += f", {duration(first.silent_ns)} ago"
    others = len(ended) - len(alike)
    doubtful = first not in unknown and any(each.seen_ns <= first.seen_ns + _BEATS_NS for each in unknown)
    if others:
        text += f"; {others:,} more ended{'' if doubtful else ' after it'}"
    going = ""
    for key, pairs in shared_waits(job.running, len(job.running) // 2 + 1)[:1]:
        waiting = [each for each, _ in pairs]
        going = f"; {named(waiting)} {verb(waiting, 'waits', 'wait')} in {key}"
    if kind == "ended":
        running = job.running
        going = going or (f"; {named(running)} {verb(running, 'runs', 'run')} on" if running else "")
        going += "; look at the end of the output" if first in unknown else ""
    sure = len(alike) == 1 or (first.seen_ns > 0 and first not in unknown)
    return Verdict(kind, f"{kind}: {text}{going}", first.rank if sure and not doubtful else None)


def _order(process: Process, later_ns: int = 0) -> tuple[bool, int, bool]:
    return process.seen_ns <= 0, process.seen_ns + later_ns, process.state is not State.DEAD


def _has_exited(process: Process) -> bool:
    return process.state is State.ENDED and process.death.startswith(EXITED)


def _of_unknown_end(job: Job) -> list[Process]:
    """Return the processes of which it is not known how they ended.

    A process that has made as many steps as one that is known to have completed has done so too.
    """
    found = [each for each in job.counted if each.state is State.ENDED and not each.status and not _has_exited(each)]
    last = [each.step for each in job.counted if each.status == COMPLETED and each.step is not None]
    return [each for each in found if not (job.over and last and each.step is not None and each.step >= max(last))]


def _how(process: Process) -> str:
    if process.state is State.DEAD:
        return process.death or "died of an unknown cause"
    return "failed" if process.status == "failed" else process.death or "ended for an unknown reason"


# ---- silent

_S = 10**9
#: The verdict is silent after this time without a heartbeat. Loading a large file may take shorter ones.
LONG_SILENT_NS = 10 * _S


def _silent(job: Job) -> Verdict | None:
    found = [each for each in job.running if _is_silent(each)]
    if not found:
        return None
    since_ns = max(each.silent_ns for each in found)
    text = f"silent: {named(found)} {verb(found, 'has', 'have')} run no Python code for {duration(since_ns)}"
    others = [each for each in job.running if not _is_silent(each)]
    if others and all(map(stands_still, others)):
        text += f"; {named(others)} {verb(others, 'makes', 'make')} no steps"
    return Verdict("silent", text, found[0].rank if len(found) == 1 else None, seconds=since_ns / _S)


def _is_silent(process: Process) -> bool:
    return process.state is State.SILENT and process.silent_ns >= LONG_SILENT_NS


# ---- stuck, paused, no-steps: of processes that run, or that somebody has ended while they stood still


def _standing_still(job: Job) -> Verdict | None:
    training = [each for each in job.present if each.rank is not None or each.step is not None]
    still = [each for each in training if stands_still(each)]
    if not still:
        return None
    since_ns = since_ns_of(still)
    stepping = [each for each in training if each.step_age_ns is not None and each.step_age_ns * 2 < since_ns]
    found = Standstill(still if stepping else training, over=job.over)  # others are about to reach their thresholds
    evidence = next(found.evidence())
    endless = {"data", "shutdown"} if evidence.waiting else {"data"}
    explained = all(found.is_active(each) and each.activity not in endless for each in evidence.holding)
    kind, about = "paused" if explained else "stuck", found.about(evidence)
    if not evidence.sure:
        kind, about = "no-steps", ""
    elif evidence.waiting and not evidence.key and any(found.stage(each) == "other" for each in evidence.holding):
        kind = "no-steps"  # an evaluation that is not marked looks the same
    go_on = f"; {named(stepping)} {'went' if job.over else verb(stepping, 'goes', 'go')} on" if stepping else ""
    text = f"{kind.replace('-', ' ')}: {found.text(evidence)}{go_on}"
    return Verdict(kind, text, evidence.rank, about, found.since_ns / _S)


# ---- starting

_NOT_STARTING = frozenset({"", "other", "shutdown"})  # activities of a process without steps
_BEGINS_NS = 10 * _S  # within which a process has not set a step yet


def _starting(job: Job) -> Verdict | None:
    """No process has made a step yet."""
    starting = [each for each in job.present if each.activity not in _NOT_STARTING or _begins(each)]
    if not starting or any(each.makes_steps for each in job.counted):
        return None
    activities: dict[str, list[Process]] = {}
    for each in starting:
        activities.setdefault("" if each.activity in _NOT_STARTING else each.activity, []).append(each)
    parts = []
    for activity, processes in sorted(activities.items(), key=lambda each: -len(each[1])):
        doing = "been starting" if activity in {"", "startup"} else f"been in {activity}"
        have = "had" if job.over else verb(processes, "has", "have")
        parts.append(f"{named(processes)} {have} {doing}{for_longest(map(_starting_ns, processes))}")
    end = " before the end" if job.over else ""
    return Verdict("starting", f"starting: {', '.join(parts[:3])}{end}", stage=starting[0].activity)


def _begins(process: Process) -> bool:
    """Return True if a process without an activity is so young that it may have none yet."""
    return process.activity == "" and process.age_ns is not None and process.age_ns < _BEGINS_NS


def _starting_ns(process: Process) -> int | None:
    """Return the time of the activity; of ``startup``, which may be the rest after ``init``, the whole time so far."""
    if process.activity == "":
        return process.age_ns
    if process.activity != "startup":
        return process.activity_age_ns
    times = [process.activity_age_ns, process.age_ns, sum(process.activities.values()) or None]
    return max((each for each in times if each is not None), default=None)


# ---- losses: compilations, a late rank, waiting for data, checkpoints

#: Steps that a process must have made in the period.
ENOUGH_STEPS = 20
#: Share of the loop's time in compilations of code that was compiled before, and their least number.
COMPILING, RECOMPILATIONS = 0.2, 3
#: A late rank takes at least this share of a step longer than the others; with few steps, chance divided by the root of
#: their number.
LATE, CHANCE = 0.05, 1.0
#: Share of each step that waits for data, on all ranks.
INPUT = 0.2
#: Share of the loop's time in saved checkpoints, and the least time of the loop in which it means something.
CHECKPOINTS, CHECKPOINT_PERIOD_NS = 0.2, 600 * _S
#: Share of the loop's time in waits over their threshold.
STUCK_SHARE = 0.1
#: A loss must be more than this many of the longest cycles explain.
PAUSES = 2

_SAVE = "checkpoint.save"


def _stuck_for_long(job: Job) -> Verdict | None:
    """The job has ended, and spent much of its time in stuck waits."""
    share, process = _largest(job.counted, STUCK)
    if job.running or process is None or share < STUCK_SHARE:
        return None
    time_ns = process.activities[STUCK]
    text = f"stuck: {named([process])} was in waits over their threshold for {duration(time_ns)} ({percent(share)})"
    return Verdict("stuck", text, process.rank, STUCK, time_ns / 1e9, share)


def _compile_storm(job: Job) -> Verdict | None:
    """Code is compiled again and again."""
    often = [each for each in job.measured if each.recompilations >= RECOMPILATIONS]
    share, process = _largest([replace(each, activities=_recompiling(each)) for each in often], "compile")
    if process is None or share < COMPILING:
        return None
    who = f" on {named([process])}" if len(job.counted) > 1 else ""
    text = f"compile storm: {percent(share)} of the time {_goes(job)} into compilation{who}"
    text += f", {process.recompilations:,} recompilations"
    return Verdict("compile-storm", text, process.rank, "compile", None, share)


def _late_rank(job: Job) -> Verdict | None:
    """The others wait for one rank in each step."""
    steps = {each.rank: each.made for each in job.measured}
    fewest = {group: min(steps[rank] for rank in times) for group, times in job.times.items()}
    found = [
        (seconds, rank, stage, group, share)
        for seconds, rank, stage, group, share in job.late()
        if share >= max(LATE, CHANCE / math.sqrt(fewest[group]))
        and seconds > PAUSES * _longest(job, rank, group, stage)
    ]
    if not found:
        return None
    seconds, rank, stage, group, share = found[0]
    of_group = f" of group {group}" if group else ""
    took = "took" if job.over else "takes"
    text = f"late rank: rank {rank}{of_group} {took} {1000 * seconds:,.1f} ms longer than the others in {stage}"
    more = len({(each[1], each[2]) for each in found}) - 1
    text += f" ({percent(share)} of each step{f'; {more:,} more' if more else ''})"
    return Verdict("late-rank", text, rank, stage, seconds, share)


def _input_bound(job: Job) -> Verdict | None:
    """All ranks wait for data."""
    shares = [share for each in job.measured if (share := _data_share(job, each)) is not None]
    if not shares or min(shares) < INPUT or any(_is_a_pause(job, each) for each in job.measured):
        return None
    least, most = percent(min(shares)), percent(max(shares))
    between = least if least == most else f"{least.removesuffix(' %')} to {most}"
    ranks = f", on all {len(shares):,} ranks" if len(shares) > 1 else ""
    text = f"input-bound: {between} of each step {_goes(job)} into waiting for data{ranks}"
    return Verdict("input-bound", text, None, "data", None, min(shares))


def _checkpoint_bound(job: Job) -> Verdict | None:
    """Checkpoints take much of the time."""
    share, process = _largest([each for each in job.measured if each.loop_ns >= CHECKPOINT_PERIOD_NS], _SAVE)
    if process is None or share < CHECKPOINTS:
        return None
    who = f" of {named([process])}" if len(job.counted) > 1 else ""
    text = f"checkpoint-bound: {percent(share)} of the time{who} {_goes(job)} into saving checkpoints"
    return Verdict("checkpoint-bound", text, process.rank, _SAVE, None, share)


def _goes(job: Job) -> str:
    return "went" if job.over else "goes"


def _data_share(job: Job, process: Process) -> float | None:
    """Return the share of data in the steps of a process, by its stages, otherwise by its ledger; None without both."""
    parts = [0.0, 0.0]
    for stages in job.stages(process).values():
        if set(stages) <= set(STAGES):
            parts[0] += stages.get("data", 0.0)
            parts[1] += sum(stages.values())
    if not parts[1]:
        if process.usual_data is not None:
            return process.usual_data
        longest = process.step_time.largest * 1e9
        data, step = (max(process.activities.get(name, 0), 0) for name in ("data", "step"))
        pause = min(data, longest) if 0 <= longest < data + step else 0.0  # it may be all of the longest steps
        parts = [data - pause, data + step - pause]
    if not parts[1]:
        return 0.0 if process.loop_ns else None  # the whole loop may be in another activity
    return parts[0] / parts[1]


def _longest(job: Job, rank: int | None, group: str, stage: str) -> float:
    """Return the part of the mean of a stage that the longest cycle of each window is."""
    found = [
        total.largest / total.count
        for each in job.counted
        if each.rank == rank
        for key, total in each.stages.items()
        if key[:2] == (group, stage) and total.windows and total.count
    ]
    return max(found, default=0.0)


def _is_a_pause(job: Job, process: Process) -> bool:
    """Return True if a few long waits explain the time for data in the stages."""
    data = [
        (stages.get("data", 0.0), _longest(job, process.rank, group, "data"))
        for group, stages in job.stages(process).items()
    ]
    return bool(data) and all(seconds <= PAUSES * longest for seconds, longest in data if seconds > 0)


def _recompiling(process: Process) -> dict[str, int]:
    """Return the activities with ``compile`` divided: first compilations of a code are ``first compilation``.

    The counter has the time in all threads, so it may be more than that of the training thread.
    """
    found = dict(process.activities)
    again_ns = min(found.get("compile", 0), process.recompiling_ns)
    return {**found, "first compilation": found.get("compile", 0) - again_ns, "compile": again_ns}


def _largest(processes: Sequence[Process], activity: str) -> tuple[float, Process | None]:
    """Return the largest share of an activity in the time of a loop, and its process; None without a loop."""
    shares = [
        (each.activities.get(activity, 0) / time_ns, -number)
        for number, each in enumerate(processes)
        if (time_ns := each.loop_ns) > 0
    ]
    if not shares:
        return 0.0, None
    share, number = max(shares)
    return share, processes[-number]


# ---- unknown, healthy

_OVERDUE_NS, _OVERDUE_STEPS = 5 * _S, 10  # without a step, after which a rate would be wrong
_SET_STEP = "call monitel.set_step(), or monitel.torch.instrument()"


def _unknown(job: Job) -> Verdict | None:
    """There are too few facts; the text names the remedy."""
    enough, text = job.measured, ""
    ranks = {each.rank for each in enough if each.rank is not None}
    stopped = [each for each in job.counted if each.status in STOPPED]
    if not job.counted:
        text = "no process of the job can be read"
    elif not any(each.makes_steps for each in job.counted):
        text = f"no step was set; {_SET_STEP}"
    elif not enough:
        most = max(each.made for each in job.counted)
        steps = f"{most} step{'' if most == 1 else 's'}{'' if job.over else ' so far'}"
        text = f"{steps}, a verdict needs {ENOUGH_STEPS} steps"
    elif all(_data_share(job, each) is None for each in enough):
        text = f"{_pace(job)}, without a ledger or stages; {_SET_STEP}"
    elif len(ranks) > 1 and not job.times:
        remedy = "late ranks are not known without stages; call monitel.torch.instrument()"
        text = f"{_pace(job)}, no overhead found, but {remedy}"
    elif job.over and stopped and all(each.step_age_ns is None for each in stopped):
        text = f"{_pace(job)}, no overhead found; {_statuses(job)}, the time since the last step is not known"
    return Verdict("unknown", f"unknown: {text}") if text else None


def _healthy(job: Job) -> Verdict:
    shares = [share for each in job.measured if (share := _data_share(job, each)) is not None]
    waiting = f", {100 * median(shares):.0f} % waiting for data" if shares else ""
    ended = f"; {statuses}" if (statuses := _statuses(job)) else ""
    return Verdict("healthy", f"healthy: {_pace(job)}{waiting}{ended}")


def _statuses(job: Job) -> str:
    return " and ".join(sorted({each.status for each in job.counted} - {"", COMPLETED}))


def _pace(job: Job) -> str:
    """Return the number of ranks, and steps per second."""
    processes = job.measured
    ranks = f"{len(processes):,} {'ranks' if all(each.rank is not None for each in processes) else 'processes'}, "
    ranks = ranks if len(processes) > 1 else ""
    if overdue := [each for each in processes if _is_overdue(each)]:
        since = duration(min(each.step_age_ns or 0 for each in overdue))
        of = f" of {named(overdue)}" if len(overdue) < len(processes) else ""
        return f"{ranks}no step{of} for {since}"
    rates = [rate for each in processes if (rate := _rate(each)) is not None]
    if not rates:
        return f"{ranks}step rate unknown"
    return f"{ranks}{step_rate(median(rates))}"


def _is_overdue(process: Process) -> bool:
    usual = process.usual_step
    if not process.runs or process.step_age_ns is None or usual is None:
        return False
    return process.step_age_ns > max(_OVERDUE_NS, _OVERDUE_STEPS * usual * 1e9)


def _rate(process: Process) -> float | None:
    return (process.rate if process.runs else None) or process.mean_rate
