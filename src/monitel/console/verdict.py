"""The verdict about a job: the first rule that applies, the same while the job runs and at its end.

The rules are those of docs/reference/verdicts.md. They are about the processes of one attempt: all of them over the
same period.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.activity import Wait
from monitel.console.lateness import ENOUGH_STEPS, cycle, suspects
from monitel.runs.process import COMPLETED, EXITED, STOPPED, Process, State
from monitel.runs.values import is_loss
from monitel.text import counted, duration, named, percent, phrase, step_rate

if TYPE_CHECKING:
    from monitel.console.job import Job

_S = 10**9


class Verdict(NamedTuple):
    """The verdict about a job. Names in its text come from the job: print it with ``printable()``."""

    kind: str  # the first column of the table in docs/reference/verdicts.md
    text: str  # one line in plain English
    rank: int | None = None  # that it is about; None for none or several
    stage: str = ""  # the stage, activity or key of a wait that it is about
    seconds: float | None = None  # lateness per step, or time for which the job stands still
    share: float | None = None  # of the time that is lost, 0 to 1


def verdict(job: Job) -> Verdict:
    rules = (
        *(_ended_badly, _silent, _standing_still, _stuck_for_long, _starting, _diverged),
        *(_compile_storm, _late_rank, _input_bound, _checkpoint_bound, _unknown, _healthy),
    )
    found = next(found for rule in rules if (found := rule(job)) is not None)
    here, world = len({each.rank for each in job.counted} - {None}), job.world_size
    if 0 < here < world:
        others = "" if job.over else ", the others elsewhere or ended"
        found = found._replace(text=f"{found.text} ({here:,} of {world:,} ranks found here{others})")
    return found


def _only(processes: Sequence[Process]) -> int | None:
    return processes[0].rank if len(processes) == 1 else None


# ---- dead, failed, ended

_LONGEST_MESSAGE, _LONGEST_NAME = 200, 40  # characters
#: An exception because another process has ended, as of gloo and NCCL; and the time within which that one is the first.
_OF_PEER, _PEER_NS = re.compile("(closed|reset) by peer|remote process exit"), 10 * _S


def _ended_badly(job: Job) -> Verdict | None:
    """The first process that did not complete. One of unknown end may have been the first one, too."""
    known, unknown = sorted(_of_known_end(job), key=_order), sorted(_of_unknown_end(job), key=_order)
    ended = known + unknown
    if not ended:
        return None
    first = ended[0]
    alike = [each for each in ended if each.how == first.how]
    sure = bool(known) and first.seen_ns > 0
    kind = "dead" if first.state is State.DEAD else "failed" if first.status == "failed" else "ended"
    text = f"{kind}: {named(alike)} {_end(kind, first)}"
    if len(alike) > 1 and sure:
        text += f", {named([first])} first"
    if kind == "ended" and first.silent_ns:
        text += f", {duration(first.silent_ns)} ago"
    if others := len(ended) - len(alike):
        text += f"; {others:,} more ended{'' if unknown else ' after it'}"
    text += _survivors(job, kind)
    text += "" if known else "; look at the end of the output"
    is_named = (sure or len(alike) == 1) and not (known and unknown)
    return Verdict(kind, text, first.rank if is_named else None)


def _end(kind: str, first: Process) -> str:
    """Return how and when the first process ended."""
    when = f"after {counted(first.made, 'step')}" if first.made else "before the first step"
    text = f"{first.how} {when if first.step is None else f'at step {first.step:,}'}"
    if kind != "failed" or first.exception is None:
        return text
    name, message, place = first.exception
    return f"{text}: {replace(first, exception=(name, message[:_LONGEST_MESSAGE], place)).failure}"


def _survivors(job: Job, kind: str) -> str:
    """Return what the processes do that run on; empty if that tells nothing."""
    key, waiting = _shared_wait(job.running, len(job.running) // 2 + 1)
    if waiting:
        return f"; {phrase(waiting, 'waits', 'wait')} in {key}"
    return f"; {phrase(job.running, 'runs', 'run')} on" if kind == "ended" and job.running else ""


def _order(process: Process) -> tuple[bool, int, bool]:
    """Return the order of ends. The end of a peer is seen by its parent later than by who was connected to it."""
    _, message, _ = process.exception or ("", "", "")
    time_ns = process.seen_ns + (_PEER_NS if process.seen_ns > 0 and _OF_PEER.search(message) else 0)
    return process.seen_ns <= 0, time_ns, process.state is not State.DEAD


def _has_exited(process: Process) -> bool:
    return process.state is State.ENDED and process.death.startswith(EXITED)


def _of_known_end(job: Job) -> list[Process]:
    """Return the processes that died or failed, and those that exited before all of these, or while others run."""
    found = [each for each in job.counted if each.state is State.DEAD or each.status == "failed"]
    until = min(map(_order, found), default=None)
    exited = [each for each in job.counted if _has_exited(each)]
    return found + [each for each in exited if (_order(each) < until if until else job.running)]


def _of_unknown_end(job: Job) -> list[Process]:
    """Return the processes of unknown end, without those with as many steps as a completed one: these completed too."""
    found = [each for each in job.counted if each.state is State.ENDED and not each.status and not _has_exited(each)]
    last = [each.step for each in job.counted if each.status == COMPLETED and each.step is not None]
    return [each for each in found if not (job.over and last and each.step is not None and each.step >= max(last))]


# ---- silent

_LONG_SILENT_NS = 10 * _S  # without a heartbeat; loading a large file may take shorter


def _silent(job: Job) -> Verdict | None:
    found = [each for each in job.running if each.state is State.SILENT and each.silent_ns >= _LONG_SILENT_NS]
    if not found:
        return None
    since_ns = max(each.silent_ns for each in found)
    text = f"silent: {phrase(found, 'has', 'have')} run no Python code for {duration(since_ns)}"
    others = [each for each in job.running if each not in found]
    if others and all(map(_stands_still, others)):
        text += f"; {phrase(others, 'makes', 'make')} no steps"
    return Verdict("silent", text, _only(found), seconds=since_ns / _S)


# ---- stuck, paused, no-steps: of processes that run, or that somebody has ended while they stood still

_STILL_NS, _STILL_STEPS = 30 * _S, 10  # a process stands still after this time without a step, and this many usual ones
_STILL_UNKNOWN_NS = 300 * _S  # the same, if the usual step is not known
_STUCK = "stuck"  # the activity of a wait over its threshold
_QUIET = frozenset({"", "step", "other"})  # activities in which a rank may wait for another one
_SLACK_NS = _S  # between the step and its time in the black box
_LISTED = 3  # ranks
_AT_THE_END = ", at the end"
_STUCK_SHARE = 0.1  # of the loop's time, after the end


class _Held(NamedTuple):
    holding: Sequence[Process]  # the others wait for them; all ranks if these are not known
    waiting: Sequence[Process] = ()  # they wait for them
    key: str = ""  # of the wait that most of the ranks are in
    stage: str = ""  # in which most of the ranks wait for others, if it is one
    sure: bool = True  # a wait, a stage or an activity shows it, and not only a missing step


def _standing_still(job: Job) -> Verdict | None:
    training = [each for each in job.present if each.rank is not None or each.step is not None]
    still = [each for each in training if _stands_still(each)]
    if not still:
        return None
    since_ns = _since_ns(still)
    stepping = [each for each in training if each.step_age_ns is not None and each.step_age_ns * 2 < since_ns]
    ranks = still if stepping else training  # others are about to reach their thresholds
    since_ns = _since_ns(ranks)
    held = _held([_lasting(each, since_ns) for each in ranks])
    endless = {"data", "shutdown"} if held.waiting else {"data"}
    explained = all(_is_active(each) and each.activity not in endless for each in held.holding)
    kind, about = "paused" if explained else "stuck", _about(held)
    if not held.sure:
        kind, about = "no-steps", ""
    elif held.waiting and not held.key and any(_stage(each) == "other" for each in held.holding):
        kind = "no-steps"  # an evaluation that is not marked looks the same
    text = f"{kind.replace('-', ' ')}: {_text(held, duration(since_ns))}"
    if stepping:
        text += f"; {phrase(stepping, 'goes', 'go')} on"
    text += _AT_THE_END if job.over else "; see monitel autopsy" if kind == "no-steps" and not held.waiting else ""
    return Verdict(kind, text, _only(held.holding), about, since_ns / _S)


def _stands_still(process: Process) -> bool:
    """Return True if the last step was too long ago, or a wait is over its threshold."""
    usual = process.usual_step
    least_ns = _STILL_UNKNOWN_NS if usual is None else max(_STILL_NS, int(_STILL_STEPS * usual * _S))
    return process.activity == _STUCK or (process.step_age_ns is not None and process.step_age_ns > least_ns)


def _since_ns(ranks: Sequence[Process]) -> int:
    """Return the time for which no rank has made a step; without steps, that of the longest stuck wait."""
    ages = [each.step_age_ns for each in ranks if each.step_age_ns is not None]
    stuck = [each.activity_age_ns or 0 for each in ranks if each.activity == _STUCK]
    return min(ages) if ages else max(stuck, default=0)


def _shared_wait(processes: Sequence[Process], least: int) -> tuple[str, list[Process]]:
    """Return the key of a wait that at least this many of several processes are in, and these; empty without one.

    One that some are not in comes before others, then the longest.
    """
    ages: dict[str, int] = {}
    for wait in (wait for each in processes for wait in each.waits):
        ages[wait.key] = max(wait.age_ns, ages.get(wait.key, 0))
    found = [(key, [each for each in processes if any(key == wait.key for wait in each.waits)]) for key in ages]
    shared = [each for each in found if len(each[1]) >= least]
    return min(shared, key=lambda each: (each[1] == processes, -ages[each[0]], each[0]), default=("", []))


def _lasting(process: Process, since_ns: int) -> Process:
    """Return a process with the activity, the stage and the waits that count, one of each key, the longest first.

    Waits and stages are those of the training thread that began after the last step, and have lasted for half of the
    standstill: an older one is that of a thread beside the training. One wait for data is as long as the standstill.
    """
    latest_ns = math.inf if process.step_age_ns is None else process.step_age_ns + _SLACK_NS

    def lasts(age_ns: int, thread: int) -> bool:
        trains = 0 in {process.thread, thread} or thread == process.thread
        return trains and since_ns <= age_ns * 2 and age_ns <= latest_ns

    waits: dict[str, Wait] = {}
    for each in sorted(process.waits, key=lambda wait: -wait.age_ns):
        if lasts(each.age_ns, each.thread):
            waits.setdefault(each.key, each)
    stage = process.stage if process.stage and lasts(process.stage.age_ns, process.stage.thread) else None
    is_short = process.activity == "data" and (process.activity_age_ns or 0) * 2 < since_ns
    activity = "" if is_short or process.activity in _QUIET else process.activity
    return process.but(waits=tuple(waits.values()), stage=stage, activity=activity)


def _is_active(process: Process) -> bool:
    """Return True if the activity explains why others wait."""
    return process.activity not in {"", _STUCK}


def _held(ranks: Sequence[Process]) -> _Held:  # noqa: PLR0911  a rule each
    """Return the ranks that the others wait for, by the first rule of docs/reference/verdicts.md that applies."""

    def by(holding: Sequence[Process], key: str = "", stage: str = "", *, sure: bool = True) -> _Held:
        return _Held(holding, [each for each in ranks if each not in holding], key, stage, sure)

    shared, inside = _shared_wait(ranks, max(len(ranks) // 2 + 1, 2))
    if shared and (outside := [each for each in ranks if each not in inside]):
        return by(outside, key=shared)  # rule 1
    syncing = [each for each in ranks if each.stage is not None and each.stage.waits]
    outside = [each for each in ranks if each not in syncing]
    if outside and len(syncing) * 2 >= len(ranks):
        least = min((each.step for each in syncing if each.step is not None), default=None)
        ahead = least is not None and any((each.step or 0) > least for each in outside)
        if not ahead and all(each.stage or each.waits or _is_active(each) for each in outside):
            return by(outside, stage=_common_stage(syncing))  # rule 2
    active = [*filter(_is_active, ranks)]
    if 0 < len(active) < len(ranks):
        return by(active)  # rule 3
    if shared or not outside:
        return _Held(ranks, key=shared, stage="" if shared else _common_stage(ranks))  # rule 4
    waiting = [each for each in ranks if each.waits or each.activity == _STUCK]
    if 0 < len(waiting) * 2 < len(ranks) and not any(each in syncing for each in waiting):
        return by(waiting)  # rule 5
    if waiting or active:
        return _Held(ranks)  # rule 6
    steps = [each.step for each in ranks if each.step is not None]
    behind = [each for each in ranks if steps and each.step == min(steps)]
    if len(behind) < len(ranks) == len(steps):
        return by(behind, sure=False)  # rule 7
    return _Held(ranks, sure=False)  # rule 8


def _common_stage(ranks: Sequence[Process]) -> str:
    names = {each.stage.name for each in ranks if each.stage is not None}
    return names.pop() if len(names) == 1 else ""


def _stage(process: Process) -> str:
    """Return the stage that a rank is in, unless an activity or a wait tells more."""
    return "" if _is_active(process) or process.waits or process.stage is None else process.stage.name


def _about(held: _Held) -> str:
    """Return the stage, activity or wait of a verdict: that of the only rank which the others wait for."""
    if held.key or _only(held.holding) is None:
        return held.key or ("" if held.waiting else held.stage)
    rank = held.holding[0]
    return _stage(rank) or rank.activity or next((wait.key for wait in rank.waits), "")


def _text(held: _Held, since: str) -> str:
    """Return the ranks that the others wait for, and what they do; if nothing shows that, the facts."""
    holding, waiting = held.holding, held.waiting
    if not held.sure and waiting:
        behind = f"{phrase(holding, 'is', 'are')} behind the others, at step {holding[0].step or 0:,}"
        return f"none for {since}; {behind}{_stages(holding)}"
    if not held.sure:
        usual = [seconds for each in holding if (seconds := each.usual_step) is not None]
        usually = f" (usually one in {duration(max(usual) * _S)})" if usual else ""
        return f"{named(holding)} made none for {since}{usually}{_stages(holding)}"
    text = _doing(holding)
    if waiting and not text and held.key:
        text = f"{phrase(holding, 'is', 'are')} not in this wait"
    if not text:
        more = [f"{len(holding) - _LISTED:,} more"] if len(holding) > _LISTED else []
        text = ", ".join([*(_doing([rank]) for rank in holding[:_LISTED]), *more])
    if waiting:
        where = f" in {held.key or held.stage}" if held.key or held.stage else ""
        text += f"; {phrase(waiting, 'waits', 'wait')} for {'it' if len(holding) == 1 else 'them'}{where}"
    return text


def _stages(ranks: Sequence[Process]) -> str:
    """Return the stages that ranks are in, the rarest first, such as ``, in forward``."""
    found: dict[str, list[Process]] = {}
    for each in ranks:
        if each.stage is not None:
            found.setdefault(each.stage.name, []).append(each)
    if [len(ranks)] == [*map(len, found.values())]:
        return f", in {next(iter(found))}"
    rarest = sorted(found.items(), key=lambda each: len(each[1]))
    parts = [f"{phrase(of, 'is', 'are')} in {stage}" for stage, of in rarest]
    return f"; {', '.join(parts)}" if parts else ""


def _doing(ranks: Sequence[Process]) -> str:
    """Return ranks with what they have in common; empty if that is nothing for several ranks."""
    facts = [_facts(each) for each in ranks]
    for fact in facts[0]:
        if all(fact in of for of in facts):
            return f"{phrase(ranks, 'has', 'have')} {fact}{_for_longest(of[fact] for of in facts)}"
    return f"{named(ranks)} is in no known wait" if len(ranks) == 1 else ""


def _facts(process: Process) -> dict[str, int | None]:
    """Return the activity, the waits and the stage of a rank as verbs, with their times, the best one first."""
    found: dict[str, int | None] = {}
    if _is_active(process):
        found[f"been in {process.activity}"] = process.activity_age_ns
    found |= {f"waited in {wait.key}": wait.age_ns for wait in process.waits}
    if process.activity == _STUCK:
        found["been in a wait over its threshold"] = process.activity_age_ns
    if process.stage is not None:
        doing = "waited for other ranks in" if process.stage.waits else "been in"
        found[f"{doing} {process.stage.name}"] = process.stage.age_ns
    return found


def _for_longest(ages_ns: Iterable[int | None]) -> str:
    longest_ns = max((age_ns for age_ns in ages_ns if age_ns is not None), default=None)
    return "" if longest_ns is None else f" for {duration(longest_ns)}"


def _stuck_for_long(job: Job) -> Verdict | None:
    share, process = _largest(job.counted, lambda each: each.activities.get(_STUCK, 0))
    if job.running or process is None or share < _STUCK_SHARE:
        return None
    time_ns = process.activities[_STUCK]
    text = f"stuck: {named([process])} was in waits over their threshold for {duration(time_ns)} ({percent(share)})"
    return Verdict("stuck", text, process.rank, _STUCK, time_ns / _S, share)


# ---- starting

_NOT_STARTING = frozenset({"", "other", "shutdown"})  # activities of a process without steps
_BEGINS_NS = 10 * _S  # within which a process has not set a step, or an activity, yet


def _starting(job: Job) -> Verdict | None:
    if any(each.makes_steps for each in job.counted):
        return None
    activities: dict[str, list[Process]] = {}
    for each in job.present:
        begins = each.activity == "" and each.age_ns is not None and each.age_ns < _BEGINS_NS
        if begins or each.activity not in _NOT_STARTING:
            activities.setdefault(each.activity, []).append(each)
    parts = []
    for activity, processes in sorted(activities.items(), key=lambda each: -len(each[1])):
        doing = "been starting" if activity in {"", "startup"} else f"been in {activity}"
        parts.append(f"{phrase(processes, 'has', 'have')} {doing}{_for_longest(map(_starting_ns, processes))}")
    text = f"starting: {', '.join(parts[:3])}{_AT_THE_END if job.over else ''}"
    return Verdict("starting", text, stage=next(iter(activities))) if parts else None


def _starting_ns(process: Process) -> int | None:
    """Return the time of the activity; of ``startup``, which may be the rest after ``init``, the whole time so far."""
    if process.activity == "":
        return process.age_ns
    if process.activity != "startup":
        return process.activity_age_ns
    times = [process.activity_age_ns, process.age_ns, sum(process.activities.values()) or None]
    return max((each for each in times if each is not None), default=None)


# ---- diverged


def _diverged(job: Job) -> Verdict | None:
    """The last loss that is known of a rank is not a finite number."""
    for each in job.counted:
        if each.value is not None and not math.isfinite(each.value) and is_loss(each.value_name):
            name = each.value_name[:_LONGEST_NAME]
            return Verdict("diverged", f"diverged: {name} is {each.value}; {_pace(job)}{_ended(job)}")
    return None


# ---- lost time: compilations, a late rank, waiting for data, checkpoints

_COMPILING, _RECOMPILATIONS = 0.2, 3  # share of the loop's time in code that was compiled before, and their number
_LATE, _CHANCE = 0.05, 1.0  # share of a step; with few steps, chance divided by the root of their number
_INPUT = 0.2  # share of each step that waits for data
_CHECKPOINTS, _CHECKPOINT_PERIOD_NS = 0.2, 600 * _S  # share of the loop's time, and the least time of the loop
_PAUSES = 2  # of the longest cycles: a loss must be more than these explain
_SAVE = "checkpoint.save"


def _compile_storm(job: Job) -> Verdict | None:
    """Code is compiled again and again. The counter has the time in all threads, so it may be more than ``compile``."""
    often = [each for each in job.measured if each.recompilations >= _RECOMPILATIONS]
    share, process = _largest(often, lambda each: min(each.activities.get("compile", 0), each.recompiling_ns))
    if process is None or share < _COMPILING:
        return None
    who = f" on {named([process])}" if len(job.counted) > 1 else ""
    text = f"compile storm: {percent(share)} of the time goes into compilation{who}"
    text += f", {process.recompilations:,} recompilations"
    return Verdict("compile-storm", text, process.rank, "compile", None, share)


def _late_rank(job: Job) -> Verdict | None:
    ranks = {each.rank: each for each in job.measured}
    fewest = {group: min(ranks[rank].made for rank in times) for group, times in job.times.items()}
    found = [
        (seconds, rank, stage, group, share)
        for group, times in job.times.items()
        for seconds, rank, stage in suspects(times)
        if (share := seconds / cycle(times)) >= max(_LATE, _CHANCE / math.sqrt(fewest[group]))
        and seconds > _PAUSES * _longest(ranks[rank], group, stage)
    ]
    if not found:
        return None
    seconds, rank, stage, group, share = max(found)
    of_group = f" of group {group}" if group else ""
    text = f"late rank: rank {rank}{of_group} takes {1000 * seconds:,.1f} ms longer than the others in {stage}"
    more = len({each[1:3] for each in found}) - 1
    text += f" ({percent(share)} of each step{f'; {more:,} more' if more else ''})"
    return Verdict("late-rank", text, rank, stage, seconds, share)


def _input_bound(job: Job) -> Verdict | None:
    shares = _data_shares(job)
    if not shares or min(shares) < _INPUT or any(_is_a_pause(job, each) for each in job.measured):
        return None
    least, most = percent(min(shares)), percent(max(shares))
    between = least if least == most else f"{least.removesuffix(' %')} to {most}"
    ranks = f", on all {len(shares):,} ranks" if len(shares) > 1 else ""
    text = f"input-bound: {between} of each step goes into waiting for data{ranks}"
    return Verdict("input-bound", text, None, "data", None, min(shares))


def _checkpoint_bound(job: Job) -> Verdict | None:
    long = [each for each in job.measured if each.loop_ns >= _CHECKPOINT_PERIOD_NS]
    share, process = _largest(long, lambda each: each.activities.get(_SAVE, 0))
    if process is None or share < _CHECKPOINTS:
        return None
    who = f" of {named([process])}" if len(job.counted) > 1 else ""
    text = f"checkpoint-bound: {percent(share)} of the time{who} goes into saving checkpoints"
    return Verdict("checkpoint-bound", text, process.rank, _SAVE, None, share)


def _data_shares(job: Job) -> list[float]:
    return [share for each in job.measured if (share := _data_share(job, each)) is not None]


def _data_share(job: Job, process: Process) -> float | None:
    """Return the share of data in the steps of a process, by its stages, otherwise by its ledger; None without both."""
    cycles = job.stages(process).values()
    data, whole = (sum(stages.get("data", 0.0) for stages in cycles), sum(sum(stages.values()) for stages in cycles))
    if not whole:
        longest = process.step_time.largest * 1e9
        data, step = (max(process.activities.get(name, 0), 0) for name in ("data", "step"))
        pause = min(data, longest) if 0 <= longest < data + step else 0.0  # it may be all of the longest steps
        data, whole = data - pause, data + step - pause
    if not whole:
        return 0.0 if process.loop_ns else None  # the whole loop may be in another activity
    return data / whole


def _longest(process: Process, group: str, stage: str) -> float:
    """Return the part of the mean of a stage that the longest cycle of each window is."""
    totals = [total for key, total in process.stages.items() if key[:2] == (group, stage)]
    return max((each.largest / each.count for each in totals if each.windows and each.count), default=0.0)


def _is_a_pause(job: Job, process: Process) -> bool:
    """Return True if a few long waits explain the time for data in the stages."""
    data = {group: stages.get("data", 0.0) for group, stages in job.stages(process).items()}
    return bool(data) and all(
        seconds <= _PAUSES * _longest(process, group, "data") for group, seconds in data.items() if seconds > 0
    )


def _largest(processes: Iterable[Process], time_ns: Callable[[Process], int]) -> tuple[float, Process | None]:
    """Return the largest share of some time in that of a loop, and its first process; None without a loop."""
    shares = [(time_ns(each) / each.loop_ns, each) for each in processes if each.loop_ns > 0]
    return max(shares, key=lambda pair: pair[0], default=(0.0, None))


# ---- unknown, healthy

_OVERDUE_NS, _OVERDUE_STEPS = 5 * _S, 10  # without a step, after which a rate would be wrong
SET_STEP = "call monitel.set_step(), or monitel.torch.instrument()"


def _unknown(job: Job) -> Verdict | None:
    enough, text = job.measured, ""
    stopped = [each for each in job.counted if each.status in STOPPED]
    if not job.counted:
        text = "no process of the job can be read"
    elif not any(each.makes_steps for each in job.counted):
        text = f"no step was set; {SET_STEP}"
    elif not enough:
        most = max(each.made for each in job.counted)
        if job.over:  # the event of a death has only the last step
            steps = counted(most, "step") if most else "an unknown number of steps"
        else:
            steps = f"{counted(most, 'step')} so far"
        text = f"{steps}, a verdict needs {ENOUGH_STEPS} steps"
    elif not _data_shares(job):
        text = f"{_pace(job)}, without a ledger or stages; {SET_STEP}"
    elif len({each.rank for each in enough} - {None}) > 1 and not job.times:
        remedy = "late ranks are not known without stages; call monitel.torch.instrument()"
        text = f"{_pace(job)}, no overhead found, but {remedy}"
    elif job.over and stopped and all(each.step_age_ns is None for each in stopped):
        text = f"{_pace(job)}, no overhead found; {_statuses(job)}, the time since the last step is not known"
    return Verdict("unknown", f"unknown: {text}") if text else None


def _healthy(job: Job) -> Verdict:
    shares = _data_shares(job)
    waiting = f", {100 * median(shares):.0f} % waiting for data" if shares else ""
    return Verdict("healthy", f"healthy: {_pace(job)}{waiting}{_ended(job)}")


def _ended(job: Job) -> str:
    return f"; {statuses}" if (statuses := _statuses(job)) else ""


def _statuses(job: Job) -> str:
    return " and ".join(sorted({each.status for each in job.counted} - {"", COMPLETED}))


def _pace(job: Job) -> str:
    processes = job.measured
    ranks = f"{len(processes):,} {'ranks' if all(each.rank is not None for each in processes) else 'processes'}, "
    ranks = ranks if len(processes) > 1 else ""
    if overdue := [*filter(_is_overdue, processes)]:
        since = duration(min(each.step_age_ns or 0 for each in overdue))
        of = f" of {named(overdue)}" if len(overdue) < len(processes) else ""
        return f"{ranks}no step{of} for {since}"
    rates = [rate for each in processes if (rate := (each.rate if each.runs else None) or each.mean_rate) is not None]
    return f"{ranks}{step_rate(median(rates)) if rates else 'step rate unknown'}"


def is_overdue(job: Job) -> bool:
    """Return True if the job is healthy as far as is known, and a step of it should have come by now."""
    return job.verdict.kind == "healthy" and any(map(_is_overdue, job.measured))


def _is_overdue(process: Process) -> bool:
    usual = process.usual_step
    if not process.runs or process.step_age_ns is None or usual is None:
        return False
    return process.step_age_ns > max(_OVERDUE_NS, _OVERDUE_STEPS * usual * 1e9)
