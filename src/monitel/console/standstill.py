"""Ranks that stand still: the ones that the others wait for, and words for what they do.

The rules are those of docs/reference/verdicts.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.text import duration, named, verb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from monitel.runs.process import Process

_S = 10**9
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


class Evidence(NamedTuple):
    """The ranks that the others wait for."""

    holding: Sequence[Process]  # they are waited for; all ranks if they are not known
    waiting: Sequence[Process] = ()  # they wait for them
    key: str = ""  # of the wait that most of the ranks are in
    stage: str = ""  # in which most of the ranks wait for others, if it is one
    sure: bool = True  # a wait, a stage or an activity shows it, and not only a missing step

    @property
    def rank(self) -> int | None:
        """The rank that the others wait for, if it is only one."""
        return self.holding[0].rank if len(self.holding) == 1 else None


def stands_still(process: Process) -> bool:
    """Return True if the last step was too long ago, or a wait is over its threshold."""
    if process.activity == STUCK:
        return True
    usual = process.usual_step
    least_ns = STILL_UNKNOWN_NS
    if usual is not None:
        least_ns = max(STILL_NS, int(STILL_STEPS * usual * _S))
    return process.step_age_ns is not None and process.step_age_ns > least_ns


def since_ns_of(ranks: Sequence[Process]) -> int:
    """Return the time for which no rank has made a step; without steps, that of the longest stuck wait."""
    ages = [each.step_age_ns for each in ranks if each.step_age_ns is not None]
    stuck = [each.activity_age_ns or 0 for each in ranks if each.activity == STUCK]
    return min(ages) if ages else max(stuck, default=0)


class Standstill:
    """Ranks that make no steps: the ones that the others wait for, and words for what they do.

    Only waits and stages of the training thread count that began after the last step, and have lasted for half of the
    standstill. A wait that is older than the step is that of a thread beside the training.

    Args:
        ranks: The ranks.
        over: They have ended.
    """

    def __init__(self, ranks: Sequence[Process], *, over: bool) -> None:
        self.since_ns, self.over = since_ns_of(ranks), over
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

    def evidence(self) -> Iterator[Evidence]:
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
            yield Evidence(ranks, key=shared, stage="" if shared else _common_stage(ranks))
        waiting = [each for each in ranks if each.waits or each.activity == STUCK]
        if 0 < len(waiting) * 2 < len(ranks) and all(each.stage is None or not each.stage.waits for each in waiting):
            yield self._held_by(waiting)
        if waiting or active:
            yield Evidence(ranks)
        steps = [each.step for each in ranks if each.step is not None]
        behind = [each for each in ranks if steps and each.step == min(steps)]
        if len(behind) < len(ranks) == len(steps):
            yield self._held_by(behind, sure=False)
        yield Evidence(ranks, sure=False)

    def _held_by(self, holding: Sequence[Process], **more: Any) -> Evidence:
        held = {id(each) for each in holding}
        return Evidence(holding, [each for each in self.ranks if id(each) not in held], **more)

    def is_active(self, process: Process) -> bool:
        """Return True if the activity explains why others wait. One wait for data is as long as the standstill."""
        if process.activity == "data":
            return process.activity_age_ns is not None and process.activity_age_ns * 2 >= self.since_ns
        return process.activity not in QUIET

    def stage(self, process: Process) -> str:
        """Return the stage that a rank is in, unless an activity or a wait tells more."""
        return "" if self.is_active(process) or process.waits or process.stage is None else process.stage.name

    def about(self, evidence: Evidence) -> str:
        """Return the stage, activity or wait of a verdict: that of the only rank which the others wait for."""
        if evidence.key:
            return evidence.key
        if evidence.rank is None:
            return "" if evidence.waiting else evidence.stage
        return self.stage(evidence.holding[0]) or evidence.holding[0].activity

    def text(self, evidence: Evidence) -> str:
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
            wait = "waited" if self.over else verb(waiting, "waits", "wait")
            text += f"; {named(waiting)} {wait} for {verb(holding, 'it', 'them')}{where}"
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
        have = "had" if self.over else verb(ranks, "has", "have")
        for fact in facts[0]:
            if all(fact in of for of in facts):
                return f"{have} {fact}{for_longest(of[fact] for of in facts)}"
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
            doing = "waited for other ranks in" if process.stage.waits else "been in"
            found[f"{doing} {process.stage.name}"] = process.stage.age_ns
        return found

    def _are(self, ranks: Sequence[Process]) -> str:
        return verb(ranks, "was", "were") if self.over else verb(ranks, "is", "are")


def _common_stage(ranks: Sequence[Process]) -> str:
    names = {each.stage.name for each in ranks if each.stage is not None}
    return names.pop() if len(names) == 1 else ""


def for_longest(ages_ns: Iterable[int | None]) -> str:
    """Return the longest time, such as `` for 12 s``; empty if no time is known."""
    longest_ns = max((age_ns for age_ns in ages_ns if age_ns is not None), default=None)
    return "" if longest_ns is None else f" for {duration(longest_ns)}"
