"""The rank that the others wait for, in a job that stands still.

It is not the rank that has waited longest, but one that does not wait for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monitel.console.verdict.facts import RankFacts

#: The activity of a wait over its threshold.
STUCK = "stuck"
#: Activities in which a rank may wait for another one.
QUIET = frozenset({"", "step", "other", STUCK})

_SLACK_NS = 10**9  # between the step and its time in the black box


class Evidence(NamedTuple):
    """The ranks that the others wait for.

    Attributes:
        holding: The ranks that the others wait for; all ranks if they are not known.
        waiting: The ranks that wait for them.
        key: The key of the wait that most of the ranks are in; empty if there is none.
        stage: The stage in which most of the ranks wait for others; empty if there is none, or if there are several.
        sure: A wait, a stage or an activity shows it, and not only a missing step.
    """

    holding: Sequence[RankFacts]
    waiting: Sequence[RankFacts]
    key: str = ""
    stage: str = ""
    sure: bool = True


def evidence_of(ranks: Sequence[RankFacts], since_ns: int) -> Evidence:
    """Return the ranks that the others wait for, by the first of these rules that applies.

    1. More than half of the ranks are in the same wait: the ranks that are not.
    2. At least half of the ranks wait for others in a stage: the ranks that do not.
    3. Some ranks, and not all, are in an activity other than ``step``: these ranks.
    4. All ranks are in the same wait, or all wait for others in a stage: nobody here.
    5. Fewer than half of the ranks are in a wait: these, because the others may wait where nothing can be seen.
    6. Any rank is in a wait or such an activity: all ranks, because it is not known which one the others wait for.
    7. The last steps differ: the ranks behind.

    Args:
        ranks: Ranks that make no steps.
        since_ns: Time since the last step of any of them.
    """
    return next(_evidence(ranks, since_ns))


def _evidence(ranks: Sequence[RankFacts], since_ns: int) -> Iterator[Evidence]:
    waits = [long_waits(each, since_ns) for each in ranks]
    shared = _shared_wait(waits)
    if shared and (outside := [each for each, keys in zip(ranks, waits, strict=True) if shared not in keys]):
        yield Evidence(outside, _without(ranks, outside), shared)
    if (found := _outside_of_sync(ranks, since_ns)) is not None:
        yield found
    active = [each for each in ranks if is_active(each, since_ns)]
    if 0 < len(active) < len(ranks):
        yield Evidence(active, _without(ranks, active))
    if shared:
        yield Evidence(ranks, (), shared)
    if all(waits_for_ranks(each, since_ns) for each in ranks):
        yield Evidence(ranks, (), stage=_common_stage(ranks))
    waiting = [each for each, keys in zip(ranks, waits, strict=True) if keys or each.activity == STUCK]
    if 0 < len(waiting) * 2 < len(ranks) and not any(waits_for_ranks(each, since_ns) for each in waiting):
        yield Evidence(waiting, _without(ranks, waiting))
    if waiting or active:
        yield Evidence(ranks, ())
    steps = [each.step for each in ranks if each.step is not None]
    behind = [each for each in ranks if steps and each.step == min(steps)]
    if len(behind) < len(ranks) == len(steps):
        yield Evidence(behind, _without(ranks, behind), sure=False)
    yield Evidence(ranks, (), sure=False)


def _outside_of_sync(ranks: Sequence[RankFacts], since_ns: int) -> Evidence | None:
    """Return the ranks that do not wait for others, if at least half of all ranks do; None if that is not clear.

    A rank does not wait for one that has made more steps. A rank that is in nothing for long may be anywhere.
    """
    waiting = [each for each in ranks if waits_for_ranks(each, since_ns)]
    outside = _without(ranks, waiting)
    if not outside or len(waiting) * 2 < len(ranks):
        return None
    known = all(
        long_stage(each, since_ns) or long_waits(each, since_ns) or is_active(each, since_ns) for each in outside
    )
    least = min((each.step for each in waiting if each.step is not None), default=None)
    ahead = least is not None and any(each.step is not None and each.step > least for each in outside)
    return Evidence(outside, waiting, stage=_common_stage(waiting)) if known and not ahead else None


def waits_for_ranks(process: RankFacts, since_ns: int) -> bool:
    """Return True if the rank has long been in a stage, and waits for other ranks there."""
    return process.stage is not None and process.stage.waits and bool(long_stage(process, since_ns))


def long_stage(process: RankFacts, since_ns: int) -> str:
    """Return the stage that began after the last step and soon after it; empty if there is none."""
    stage = process.stage
    if stage is None or stage.age_ns * 2 < since_ns:
        return ""
    return stage.name if process.step_age_ns is None or stage.age_ns <= process.step_age_ns + _SLACK_NS else ""


def _common_stage(ranks: Sequence[RankFacts]) -> str:
    names = {each.stage.name for each in ranks if each.stage is not None}
    return names.pop() if len(names) == 1 else ""


def long_waits(process: RankFacts, since_ns: int) -> dict[str, int]:
    """Return the age of each wait that began after the last step and soon after it, by key, the longest first.

    A wait that is older than the last step is that of a thread beside the training.
    """
    latest_ns = None if process.step_age_ns is None else process.step_age_ns + _SLACK_NS
    found: dict[str, int] = {}
    for wait in process.waits:
        if wait.age_ns * 2 >= since_ns and (latest_ns is None or wait.age_ns <= latest_ns):
            found[wait.key] = max(wait.age_ns, found.get(wait.key, 0))
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def is_active(process: RankFacts, since_ns: int) -> bool:
    """Return True if the activity explains why others wait. One wait for data is as long as the standstill."""
    if process.activity == "data":
        return process.activity_age_ns is not None and process.activity_age_ns * 2 >= since_ns
    return process.activity not in QUIET


def _shared_wait(waits: Sequence[Mapping[str, int]]) -> str:
    """Return the wait that most of several ranks are in: first one that a rank is not in, then the longest."""
    ages: dict[str, list[int]] = {}
    for keys in waits:
        for key, age_ns in keys.items():
            ages.setdefault(key, []).append(age_ns)
    found = [(len(of) == len(waits), -max(of), key) for key, of in ages.items() if len(of) * 2 > len(waits) > 1]
    return min(found)[2] if found else ""


def _without(ranks: Sequence[RankFacts], others: Sequence[RankFacts]) -> list[RankFacts]:
    left_out = {id(each) for each in others}
    return [each for each in ranks if id(each) not in left_out]
