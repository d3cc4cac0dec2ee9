"""The rules about a job that makes no steps: ``silent``, ``stuck``, ``paused`` and ``no-steps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.console.text import duration
from monitel.console.verdict.evidence import STUCK, evidence_of, is_active, long_stage, long_waits
from monitel.console.verdict.facts import usual_step
from monitel.console.verdict.result import Verdict, named, verb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel.console.verdict.evidence import Evidence
    from monitel.console.verdict.facts import JobFacts, RankFacts
    from monitel.console.verdict.result import Kind

_S = 10**9

#: A process is silent after this time without a heartbeat. Loading a large file may take shorter ones.
SILENT_NS = 10 * _S
#: A process stands still after this time without a step, and after this many usual steps.
STILL_NS, STILL_STEPS = 30 * _S, 10
#: The time where the usual one of a step is not known.
STILL_UNKNOWN_NS = 300 * _S

#: Statuses of processes that somebody else has ended.
STOPPED = frozenset({"interrupted", "preempted"})

_LONGEST_STEP = 1e6  # seconds
_SHOWN = 3  # ranks in a list


def silent(job: JobFacts) -> Verdict | None:
    """Return the verdict about processes without a heartbeat; None if there is none."""
    found = [each for each in job.running if _is_silent(each)]
    if not found:
        return None
    ages = [each.silent_ns for each in found if each.silent_ns is not None]
    since = f" for {duration(max(ages))}" if ages else ""
    text = f"silent: {named(found)} {verb(found, 'has', 'have')} run no Python code{since}"
    others = [each for each in job.running if not _is_silent(each)]
    if others and all(map(_stands_still, others)):
        text += f"; {named(others)} {verb(others, 'makes', 'make')} no steps"
    seconds = max(ages) / _S if ages else None
    return Verdict("silent", f"{text}{job.elsewhere}", _only(found), seconds=seconds)


def standing_still(job: JobFacts) -> Verdict | None:
    """Return the verdict about ranks that make no steps for much longer than usual; None if there are none."""
    training = [each for each in job.running if each.rank is not None or each.step is not None]
    still = [each for each in training if _stands_still(each)]
    if not still:
        return None
    since_ns = _since_ns(still)
    stepping = [each for each in training if each.step_age_ns is not None and each.step_age_ns * 2 < since_ns]
    ranks = still if stepping else training  # the others are about to reach their thresholds
    since_ns = _since_ns(ranks)
    evidence = evidence_of(ranks, since_ns)
    go_on = f"; {named(stepping)} {verb(stepping, 'goes', 'go')} on" if stepping else ""
    rank = _only(evidence.holding)
    seconds = since_ns / _S
    if not evidence.sure:
        text = f"no steps: {_without_evidence(evidence, since_ns)}"
        return Verdict("no-steps", f"{text}{go_on}{job.elsewhere}", rank, seconds=seconds)
    endless = {"data", "shutdown"} if evidence.waiting else {"data"}
    explained = all(is_active(each, since_ns) and each.activity not in endless for each in evidence.holding)
    kind: Kind = "paused" if explained else "stuck"
    if evidence.waiting and not evidence.key and any(_stage(each, since_ns) == "other" for each in evidence.holding):
        kind = "no-steps"  # an evaluation that is not marked looks the same
    text = f"{kind.replace('-', ' ')}: {_with_evidence(evidence, since_ns)}{go_on}{job.elsewhere}"
    return Verdict(kind, text, rank, _about(evidence, since_ns), seconds)


def ended_without_steps(job: JobFacts) -> Verdict | None:
    """Return the verdict about a job that was interrupted when it made no steps; None if it made steps."""
    still = [each for each in job.processes if each.status in STOPPED and _stands_still(each)]
    if job.running or not still:
        return None
    since_ns = _since_ns(still)
    text = f"no steps: {named(still)} made none for {duration(since_ns)} before the end{_usually(still)}"
    return Verdict("no-steps", f"{text}{job.elsewhere}", _only(still), seconds=since_ns / _S)


def _only(processes: Sequence[RankFacts]) -> int | None:
    return processes[0].rank if len(processes) == 1 else None


def _about(evidence: Evidence, since_ns: int) -> str:
    """Return the stage, activity or wait that a verdict is about: that of the only rank which the others wait for."""
    if evidence.key:
        return evidence.key
    if _only(evidence.holding) is None:
        return "" if evidence.waiting else evidence.stage
    only = evidence.holding[0]
    return _stage(only, since_ns) or only.activity


def _stage(process: RankFacts, since_ns: int) -> str:
    """Return the stage that a rank has long been in, unless an activity or a wait tells more."""
    return "" if is_active(process, since_ns) or long_waits(process, since_ns) else long_stage(process, since_ns)


def _is_silent(process: RankFacts) -> bool:
    return process.state == "silent" and (process.silent_ns is None or process.silent_ns >= SILENT_NS)


def _stands_still(process: RankFacts) -> bool:
    if process.activity == STUCK:
        return True
    usual = usual_step(process)
    least_ns = STILL_UNKNOWN_NS
    if usual is not None:
        least_ns = max(STILL_NS, int(STILL_STEPS * min(usual, _LONGEST_STEP) * _S))
    return process.step_age_ns is not None and process.step_age_ns > least_ns


def _since_ns(ranks: Sequence[RankFacts]) -> int:
    """Return the time for which no rank has made a step; without steps, that of the longest stuck wait."""
    ages = [each.step_age_ns for each in ranks if each.step_age_ns is not None]
    stuck = [each.activity_age_ns or 0 for each in ranks if each.activity == STUCK]
    return min(ages) if ages else max(stuck, default=0)


def _with_evidence(evidence: Evidence, since_ns: int) -> str:
    holding, waiting = evidence.holding, evidence.waiting
    doing = _doing_together(holding, since_ns)
    if waiting:
        where = f" in {evidence.key or evidence.stage}" if evidence.key or evidence.stage else ""
        others = f"{named(waiting)} {verb(waiting, 'waits', 'wait')} for {verb(holding, 'it', 'them')}{where}"
        if not doing and evidence.key:
            doing = "are not in this wait"
        return f"{f'{named(holding)} {doing}' if doing else _one_by_one(holding, since_ns)}; {others}"
    return f"{named(holding)} {doing}" if doing else _one_by_one(holding, since_ns)


def _one_by_one(ranks: Sequence[RankFacts], since_ns: int) -> str:
    each = [f"{named([rank])} {_doing(rank, since_ns)}" for rank in ranks[:_SHOWN]]
    more = [f"{len(ranks) - _SHOWN:,} more"] if len(ranks) > _SHOWN else []
    return ", ".join([*each, *more])


def _without_evidence(evidence: Evidence, since_ns: int) -> str:
    holding = evidence.holding
    if evidence.waiting:
        at = f"at step {holding[0].step or 0:,}"
        behind = f"{named(holding)} {verb(holding, 'is', 'are')} behind the others, {at}"
        return f"none for {duration(since_ns)}; {behind}{_stages(holding, since_ns)}"
    made = f"{named(holding)} made none for {duration(since_ns)}{_usually(holding)}"
    return f"{made}{_stages(holding, since_ns)}; see monitel autopsy"


def _stages(ranks: Sequence[RankFacts], since_ns: int) -> str:
    """Return the stages that ranks have long been in, the rarest first, such as ``, in forward``; empty if unknown."""
    found: dict[str, list[RankFacts]] = {}
    for each in ranks:
        found.setdefault(long_stage(each, since_ns), []).append(each)
    found.pop("", None)
    if [len(ranks)] == [*map(len, found.values())]:
        return f", in {next(iter(found))}"
    rarest = sorted(found.items(), key=lambda each: len(each[1]))
    parts = [f"{named(of)} {verb(of, 'is', 'are')} in {stage}" for stage, of in rarest]
    return f"; {', '.join(parts)}" if parts else ""


def _doing_together(ranks: Sequence[RankFacts], since_ns: int) -> str:
    """Return what ranks have in common, as a verb with its object; empty if there is nothing."""
    if len(ranks) == 1:
        return _doing(ranks[0], since_ns)
    activities = {each.activity if is_active(each, since_ns) else "" for each in ranks}
    if len(activities) == 1 and "" not in activities:
        return f"have been in {min(activities)}{_for(each.activity_age_ns for each in ranks)}"
    waits = [long_waits(each, since_ns) for each in ranks]
    if keys := set.intersection(*map(set, waits)):
        key = max(keys, key=lambda key: (waits[0][key], key))
        return f"have waited in {key}{_for(of[key] for of in waits)}"
    stages = [each.stage for each in ranks if each.stage is not None and long_stage(each, since_ns)]
    if len(stages) == len(ranks) and len({(each.name, each.waits) for each in stages}) == 1:
        doing = "have waited for other ranks" if stages[0].waits else "have been"
        return f"{doing} in {stages[0].name}{_for(each.age_ns for each in stages)}"
    return ""


def _doing(process: RankFacts, since_ns: int) -> str:
    """Return the activity, the wait or the stage of a rank, as a verb with its object."""
    if is_active(process, since_ns):
        return f"has been in {process.activity}{_for([process.activity_age_ns])}"
    if waits := long_waits(process, since_ns):
        key = next(iter(waits))
        return f"has waited in {key}{_for([waits[key]])}"
    if process.activity == STUCK:
        return f"has been in a wait over its threshold{_for([process.activity_age_ns])}"
    if process.stage is not None and long_stage(process, since_ns):
        doing = "has waited for other ranks" if process.stage.waits else "has been"
        return f"{doing} in {process.stage.name}{_for([process.stage.age_ns])}"
    return "is in no known wait"


def _for(ages_ns: Iterable[int | None]) -> str:
    """Return the longest time, such as `` for 12 s``; empty if no time is known."""
    longest_ns = max((age_ns for age_ns in ages_ns if age_ns is not None), default=None)
    return "" if longest_ns is None else f" for {duration(longest_ns)}"


def _usually(ranks: Sequence[RankFacts]) -> str:
    usual = [seconds for each in ranks if (seconds := usual_step(each)) is not None]
    return f" (usually one in {duration(round(min(max(usual), _LONGEST_STEP) * _S))})" if usual else ""
