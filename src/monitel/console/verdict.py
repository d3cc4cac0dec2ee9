"""The verdict about a job: the first rule that applies, the same while the job runs and at its end.

The rules are those of docs/reference/verdicts.md. They are about the processes of one attempt: all of them over the
same period.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.console.lateness import STAGES
from monitel.console.process import COMPLETED, EXITED, STOPPED, State
from monitel.console.text import duration, step_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from monitel.console.job import Job
    from monitel.console.process import Process


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
    for rule in (
        *(_ended_badly, _silent, _standing_still, _stuck_for_long, _starting),
        *(_compile_storm, _late_rank, _input_bound, _checkpoint_bound, _unknown),
    ):
        found = rule(job)
        if found is not None:
            return found
    return _healthy(job)


def _elsewhere(job: Job) -> str:
    """Return a remark in parentheses if not all ranks of the job were found."""
    found, world = len({each.rank for each in job.counted} - {None}), job.world_size
    others = "" if job.over else ", the others elsewhere or ended"
    return f" ({found:,} of {world:,} ranks found here{others})" if 0 < found < world else ""


def ranks_in_words(ranks: Sequence[int], limit: int = 8) -> str:
    """Return ranks in ascending order as words, such as ``ranks 0-6 and 8``.

    Example:
        >>> ranks_in_words([3]), ranks_in_words([0, 1, 2, 5]), ranks_in_words([0, 2], limit=1)
        ('rank 3', 'ranks 0-2 and 5', 'ranks 0 and 1 more')
    """
    runs = []
    for _, group in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        if len(run) > 2:  # noqa: PLR2004  two are written one by one
            runs.append((f"{run[0]}-{run[-1]}", len(run)))
        else:
            runs += [(str(rank), 1) for rank in run]
    shown = [text for text, _ in runs[:limit]]
    if more := sum(number for _, number in runs[limit:]):
        shown.append(f"{more} more")
    words = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def named(processes: Sequence[Process], limit: int = 4) -> str:
    """Return processes in words: their ranks, or their process ids if a rank is not known."""
    ranks = sorted({each.rank for each in processes if each.rank is not None})
    if len(ranks) == len(processes):
        return ranks_in_words(ranks, limit)
    return f"process {processes[0].pid}" if len(processes) == 1 else f"{len(processes):,} processes"


def _verb(processes: Sequence[Process], singular: str, plural: str) -> str:
    return singular if len(processes) == 1 else plural


def _only(processes: Sequence[Process]) -> int | None:
    return processes[0].rank if len(processes) == 1 else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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
        going = f"; {named(waiting)} {_verb(waiting, 'waits', 'wait')} in {key}"
    if kind == "ended":
        running = job.running
        going = going or (f"; {named(running)} {_verb(running, 'runs', 'run')} on" if running else "")
        going += "; look at the end of the output" if first in unknown else ""
    sure = len(alike) == 1 or (first.seen_ns > 0 and first not in unknown)
    return Verdict(kind, f"{kind}: {text}{going}{_elsewhere(job)}", first.rank if sure and not doubtful else None)


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


def shared_waits(processes: Sequence[Process], least: int) -> list[tuple[str, list[tuple[Process, int]]]]:
    """Return the waits that at least this many of several processes are in: first one that some are not in.

    Returns:
        The key of each, and the processes in it with the time since its begin in ns; of equal ones the longest first.
    """
    found: dict[str, dict[int, int]] = {}
    for place, each in enumerate(processes):
        for wait in each.waits:
            ages = found.setdefault(wait.key, {})
            ages[place] = max(wait.age_ns, ages.get(place, 0))
    shared = [(key, ages) for key, ages in found.items() if len(ages) >= least]
    shared.sort(key=lambda wait: (len(wait[1]) == len(processes), -max(wait[1].values()), wait[0]))
    return [(key, [(processes[place], age_ns) for place, age_ns in ages.items()]) for key, ages in shared]


# ---- silent

_S = 10**9
#: The verdict is silent after this time without a heartbeat. Loading a large file may take shorter ones.
LONG_SILENT_NS = 10 * _S


def _silent(job: Job) -> Verdict | None:
    found = [each for each in job.running if _is_silent(each)]
    if not found:
        return None
    since_ns = max(each.silent_ns for each in found)
    text = f"silent: {named(found)} {_verb(found, 'has', 'have')} run no Python code for {duration(since_ns)}"
    others = [each for each in job.running if not _is_silent(each)]
    if others and all(map(_stands_still, others)):
        text += f"; {named(others)} {_verb(others, 'makes', 'make')} no steps"
    return Verdict("silent", f"{text}{_elsewhere(job)}", _only(found), seconds=since_ns / _S)


def _is_silent(process: Process) -> bool:
    return process.state is State.SILENT and process.silent_ns >= LONG_SILENT_NS


# ---- stuck, paused, no-steps: of processes that run, or that somebody has ended while they stood still

#: A process stands still after this time without a step, and after this many usual steps.
STILL_NS, STILL_STEPS = 30 * _S, 10
#: The time where the usual one of a step is not known.
STILL_UNKNOWN_NS = 300 * _S
#: The activity of a wait over its threshold.
STUCK = "stuck"
#: Activities in which a rank may wait for another one.
QUIET = frozenset({"", "step", "other", STUCK})

_SLACK_NS = _S  # between the step and its time in the black box
_SHOWN = 3  # ranks in a list


class _Evidence(NamedTuple):
    """The ranks that the others wait for."""

    holding: Sequence[Process]  # they are waited for; all ranks if they are not known
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
    found = _Standstill(still if stepping else training, over=job.over)  # others are about to reach their thresholds
    evidence = next(found.evidence())
    endless = {"data", "shutdown"} if evidence.waiting else {"data"}
    explained = all(found.is_active(each) and each.activity not in endless for each in evidence.holding)
    kind, about = "paused" if explained else "stuck", found.about(evidence)
    if not evidence.sure:
        kind, about = "no-steps", ""
    elif evidence.waiting and not evidence.key and any(found.stage(each) == "other" for each in evidence.holding):
        kind = "no-steps"  # an evaluation that is not marked looks the same
    go_on = f"; {named(stepping)} {'went' if job.over else _verb(stepping, 'goes', 'go')} on" if stepping else ""
    text = f"{kind.replace('-', ' ')}: {found.text(evidence)}{go_on}{_elsewhere(job)}"
    return Verdict(kind, text, _only(evidence.holding), about, found.since_ns / _S)


def _stands_still(process: Process) -> bool:
    if process.activity == STUCK:
        return True
    usual = process.usual_step
    least_ns = STILL_UNKNOWN_NS
    if usual is not None:
        least_ns = max(STILL_NS, int(STILL_STEPS * usual * _S))
    return process.step_age_ns is not None and process.step_age_ns > least_ns


def _since_ns(ranks: Sequence[Process]) -> int:
    """Return the time for which no rank has made a step; without steps, that of the longest stuck wait."""
    ages = [each.step_age_ns for each in ranks if each.step_age_ns is not None]
    stuck = [each.activity_age_ns or 0 for each in ranks if each.activity == STUCK]
    return min(ages) if ages else max(stuck, default=0)


class _Standstill:
    """Ranks that make no steps: the ones that the others wait for, and words for what they do.

    Only waits and stages of the training thread count that began after the last step, and have lasted for half of the
    standstill. A wait that is older than the step is that of a thread beside the training.

    Args:
        ranks: The ranks.
        over: They have ended.
    """

    def __init__(self, ranks: Sequence[Process], *, over: bool) -> None:
        self.since_ns, self.over = _since_ns(ranks), over
        self.ranks = [self._lasting(each) for each in ranks]

    def _lasting(self, process: Process) -> Process:
        """Return a process with the waits and the stage that count, the longest wait first and one of each key."""
        latest_ns = math.inf if process.step_age_ns is None else process.step_age_ns + _SLACK_NS

        def lasts(age_ns: int, thread: int) -> bool:
            trains = 0 in {process.thread, thread} or thread == process.thread
            return trains and self.since_ns <= age_ns * 2 and age_ns <= latest_ns

        waits = sorted(
            (wait for wait in process.waits if lasts(wait.age_ns, wait.thread)), key=lambda wait: wait.age_ns
        )
        stage = process.stage if process.stage and lasts(process.stage.age_ns, process.stage.thread) else None
        return replace(process, waits=tuple({wait.key: wait for wait in waits}.values())[::-1], stage=stage)

    def evidence(self) -> Iterator[_Evidence]:
        """Yield the ranks that the others wait for: the first one is the answer.

        1. More than half of the ranks are in the same wait: the ranks that are not.
        2. At least half of the ranks wait for others in a stage: the ranks that do not. A rank does not wait for one
           that has made more steps, and a rank that is in nothing for long may be anywhere.
        3. Some ranks, and not all, are in an activity other than ``step``: these ranks.
        4. All ranks are in the same wait, or all wait for others in a stage: nobody here.
        5. Fewer than half of the ranks are in a wait: these, because the others may wait where nothing can be seen.
        6. Any rank is in a wait or such an activity: all ranks, because it is not known which one the others wait for.
        7. The last steps differ: the ranks behind.
        """
        ranks = self.ranks
        shared = next((key for key, _ in shared_waits(ranks, max(len(ranks) // 2 + 1, 2))), "")
        if shared and (outside := [each for each in ranks if shared not in {wait.key for wait in each.waits}]):
            yield self._held_by(outside, key=shared)
        syncing = [each for each in ranks if each.stage is not None and each.stage.waits]
        outside = [each for each in ranks if each.stage is None or not each.stage.waits]
        if outside and len(syncing) * 2 >= len(ranks):
            least = min((each.step for each in syncing if each.step is not None), default=None)
            ahead = least is not None and any((each.step or 0) > least for each in outside)
            if not ahead and all(each.stage or each.waits or self.is_active(each) for each in outside):
                yield self._held_by(outside, stage=_common_stage(syncing))
        active = [*filter(self.is_active, ranks)]
        if 0 < len(active) < len(ranks):
            yield self._held_by(active)
        if shared or not outside:
            yield _Evidence(ranks, key=shared, stage="" if shared else _common_stage(ranks))
        waiting = [each for each in ranks if each.waits or each.activity == STUCK]
        if 0 < len(waiting) * 2 < len(ranks) and all(each.stage is None or not each.stage.waits for each in waiting):
            yield self._held_by(waiting)
        if waiting or active:
            yield _Evidence(ranks)
        steps = [each.step for each in ranks if each.step is not None]
        behind = [each for each in ranks if steps and each.step == min(steps)]
        if len(behind) < len(ranks) == len(steps):
            yield self._held_by(behind, sure=False)
        yield _Evidence(ranks, sure=False)

    def _held_by(self, holding: Sequence[Process], **more: Any) -> _Evidence:
        held = {id(each) for each in holding}
        return _Evidence(holding, [each for each in self.ranks if id(each) not in held], **more)

    def is_active(self, process: Process) -> bool:
        """Return True if the activity explains why others wait. One wait for data is as long as the standstill."""
        if process.activity == "data":
            return process.activity_age_ns is not None and process.activity_age_ns * 2 >= self.since_ns
        return process.activity not in QUIET

    def stage(self, process: Process) -> str:
        """Return the stage that a rank is in, unless an activity or a wait tells more."""
        return "" if self.is_active(process) or process.waits or process.stage is None else process.stage.name

    def about(self, evidence: _Evidence) -> str:
        """Return the stage, activity or wait of a verdict: that of the only rank which the others wait for."""
        if evidence.key:
            return evidence.key
        if _only(evidence.holding) is None:
            return "" if evidence.waiting else evidence.stage
        return self.stage(evidence.holding[0]) or evidence.holding[0].activity

    def text(self, evidence: _Evidence) -> str:
        """Return the ranks that the others wait for, and what they do; if nothing shows that, the facts."""
        holding, waiting = evidence.holding, evidence.waiting
        end = " before the end" if self.over else ""
        if not evidence.sure and waiting:
            behind = f"{named(holding)} {self._are(holding)} behind the others, at step {holding[0].step or 0:,}"
            return f"none for {duration(self.since_ns)}{end}; {behind}{self._stages(holding)}"
        if not evidence.sure:
            usual = [seconds for each in holding if (seconds := each.usual_step) is not None]
            usually = f" (usually one in {duration(max(usual) * _S)})" if usual else ""
            see = "" if self.over else "; see monitel autopsy"
            return f"{named(holding)} made none for {duration(self.since_ns)}{end}{usually}{self._stages(holding)}{see}"
        doing = self._doing(holding)
        if waiting and not doing and evidence.key:
            doing = f"{self._are(holding)} not in this wait"
        if doing:
            text = f"{named(holding)} {doing}{end}"
        else:
            each = [f"{named([rank])} {self._doing([rank])}" for rank in holding[:_SHOWN]]
            more = [f"{len(holding) - _SHOWN:,} more"] if len(holding) > _SHOWN else []
            text = f"{', '.join([*each, *more])}{end}"
        if waiting:
            where = f" in {evidence.key or evidence.stage}" if evidence.key or evidence.stage else ""
            wait = "waited" if self.over else _verb(waiting, "waits", "wait")
            text += f"; {named(waiting)} {wait} for {_verb(holding, 'it', 'them')}{where}"
        return text

    def _stages(self, ranks: Sequence[Process]) -> str:
        """Return the stages that ranks are in, the rarest first, such as ``, in forward``."""
        found: dict[str, list[Process]] = {}
        for each in ranks:
            if each.stage is not None:
                found.setdefault(each.stage.name, []).append(each)
        if [len(ranks)] == [*map(len, found.values())]:
            return f", in {next(iter(found))}"
        rarest = sorted(found.items(), key=lambda each: len(each[1]))
        parts = [f"{named(of)} {self._are(of)} in {stage}" for stage, of in rarest]
        return f"; {', '.join(parts)}" if parts else ""

    def _doing(self, ranks: Sequence[Process]) -> str:
        """Return what ranks have in common, as a verb with its object; empty if that is nothing for several ranks."""
        facts = [self._facts(each) for each in ranks]
        have = "had" if self.over else _verb(ranks, "has", "have")
        for verb in facts[0]:
            if all(verb in of for of in facts):
                return f"{have} {verb}{_for(of[verb] for of in facts)}"
        return f"{self._are(ranks)} in no known wait" if len(ranks) == 1 else ""

    def _facts(self, process: Process) -> dict[str, int | None]:
        """Return the activity, the waits and the stage of a rank as verbs, with their times, the best one first."""
        found: dict[str, int | None] = {}
        if self.is_active(process):
            found[f"been in {process.activity}"] = process.activity_age_ns
        found |= {f"waited in {wait.key}": wait.age_ns for wait in process.waits}
        if process.activity == STUCK:
            found["been in a wait over its threshold"] = process.activity_age_ns
        if process.stage is not None:
            verb = "waited for other ranks in" if process.stage.waits else "been in"
            found[f"{verb} {process.stage.name}"] = process.stage.age_ns
        return found

    def _are(self, ranks: Sequence[Process]) -> str:
        return _verb(ranks, "was", "were") if self.over else _verb(ranks, "is", "are")


def _common_stage(ranks: Sequence[Process]) -> str:
    names = {each.stage.name for each in ranks if each.stage is not None}
    return names.pop() if len(names) == 1 else ""


def _for(ages_ns: Iterable[int | None]) -> str:
    """Return the longest time, such as `` for 12 s``; empty if no time is known."""
    longest_ns = max((age_ns for age_ns in ages_ns if age_ns is not None), default=None)
    return "" if longest_ns is None else f" for {duration(longest_ns)}"


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
        have = "had" if job.over else _verb(processes, "has", "have")
        parts.append(f"{named(processes)} {have} {doing}{_for(map(_starting_ns, processes))}")
    end = " before the end" if job.over else ""
    return Verdict("starting", f"starting: {', '.join(parts[:3])}{end}{_elsewhere(job)}", stage=starting[0].activity)


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
    text = f"stuck: {named([process])} was in waits over their threshold for {duration(time_ns)} ({_percent(share)})"
    return Verdict("stuck", f"{text}{_elsewhere(job)}", process.rank, STUCK, time_ns / 1e9, share)


def _compile_storm(job: Job) -> Verdict | None:
    """Code is compiled again and again."""
    often = [each for each in job.measured if each.recompilations >= RECOMPILATIONS]
    share, process = _largest([replace(each, activities=_recompiling(each)) for each in often], "compile")
    if process is None or share < COMPILING:
        return None
    who = f" on {named([process])}" if len(job.counted) > 1 else ""
    text = f"compile storm: {_percent(share)} of the time {_goes(job)} into compilation{who}"
    text += f", {process.recompilations:,} recompilations{_elsewhere(job)}"
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
    text += f" ({_percent(share)} of each step{f'; {more:,} more' if more else ''}){_elsewhere(job)}"
    return Verdict("late-rank", text, rank, stage, seconds, share)


def _input_bound(job: Job) -> Verdict | None:
    """All ranks wait for data."""
    shares = [share for each in job.measured if (share := _data_share(job, each)) is not None]
    if not shares or min(shares) < INPUT or any(_is_a_pause(job, each) for each in job.measured):
        return None
    least, most = _percent(min(shares)), _percent(max(shares))
    between = least if least == most else f"{least.removesuffix(' %')} to {most}"
    ranks = f", on all {len(shares):,} ranks" if len(shares) > 1 else ""
    text = f"input-bound: {between} of each step {_goes(job)} into waiting for data{ranks}"
    return Verdict("input-bound", f"{text}{_elsewhere(job)}", None, "data", None, min(shares))


def _checkpoint_bound(job: Job) -> Verdict | None:
    """Checkpoints take much of the time."""
    share, process = _largest([each for each in job.measured if each.loop_ns >= CHECKPOINT_PERIOD_NS], _SAVE)
    if process is None or share < CHECKPOINTS:
        return None
    who = f" of {named([process])}" if len(job.counted) > 1 else ""
    text = f"checkpoint-bound: {_percent(share)} of the time{who} {_goes(job)} into saving checkpoints"
    return Verdict("checkpoint-bound", f"{text}{_elsewhere(job)}", process.rank, _SAVE, None, share)


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
    return Verdict("unknown", f"unknown: {text}{_elsewhere(job)}") if text else None


def _healthy(job: Job) -> Verdict:
    shares = [share for each in job.measured if (share := _data_share(job, each)) is not None]
    waiting = f", {100 * median(shares):.0f} % waiting for data" if shares else ""
    ended = f"; {statuses}" if (statuses := _statuses(job)) else ""
    return Verdict("healthy", f"healthy: {_pace(job)}{waiting}{ended}{_elsewhere(job)}")


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
