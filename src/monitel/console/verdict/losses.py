"""The rules about the time of the training loop: compilations, a late rank, waiting for data, checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from monitel.console.text import duration
from monitel.console.verdict.facts import loop_ns
from monitel.console.verdict.lateness import STAGES, cycle, suspects
from monitel.console.verdict.result import Verdict, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.verdict.facts import JobFacts, RankFacts
    from monitel.console.verdict.lateness import Times

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
CHECKPOINTS, CHECKPOINT_PERIOD_NS = 0.2, 600 * 10**9
#: Share of the loop's time in waits over their threshold.
STUCK = 0.1

#: A loss must be more than this many of the longest cycles explain.
PAUSES = 2

_LONGEST_STAGE = 1e6  # seconds
_SAVE = "checkpoint.save"


def measured(job: JobFacts) -> list[RankFacts]:
    """Return the processes with enough steps."""
    return [each for each in job.processes if each.steps >= ENOUGH_STEPS]


def stuck_for_long(job: JobFacts) -> Verdict | None:
    """Return the verdict about a job that has ended, and spent much of its time in stuck waits; None if it did not."""
    share, process = _largest(job.processes, "stuck")
    if job.running or process is None or share < STUCK:
        return None
    time_ns = process.activities["stuck"]
    text = f"stuck: {named([process])} was in waits over their threshold for {duration(time_ns)} ({_percent(share)})"
    return Verdict("stuck", f"{text}{job.elsewhere}", process.rank, "stuck", time_ns / 1e9, share)


def compile_storm(job: JobFacts) -> Verdict | None:
    """Return the verdict about code that is compiled again and again; None if that takes little time."""
    often = [each for each in measured(job) if each.recompilations >= RECOMPILATIONS]
    share, process = _largest([replace(each, activities=_recompiling(each)) for each in often], "compile")
    if process is None or share < COMPILING:
        return None
    number = f"{process.recompilations:,} recompilations"
    who = f" on {named([process])}" if len(job.processes) > 1 else ""
    tense = "went" if job.over else "goes"
    text = f"compile storm: {_percent(share)} of the time {tense} into compilation{who}, {number}"
    return Verdict("compile-storm", f"{text}{job.elsewhere}", process.rank, "compile", None, share)


def late_rank(job: JobFacts) -> Verdict | None:
    """Return the verdict about the rank for which the others wait longest; None if no rank is late."""
    found = []
    for group, times, steps in compared(job):
        whole = cycle(times)
        least = max(LATE, CHANCE / math.sqrt(steps))
        found += [
            (seconds, rank, stage, group, seconds / whole)
            for seconds, rank, stage in suspects(times)
            if seconds >= least * whole and seconds > PAUSES * _longest(job, rank, group, stage)
        ]
    if not found:
        return None
    seconds, rank, stage, group, share = max(found)
    of_group = f" of group {group}" if group else ""
    took = "took" if job.over else "takes"
    text = f"late rank: rank {rank}{of_group} {took} {1000 * seconds:,.1f} ms longer than the others in {stage}"
    more = len({(each[1], each[2]) for each in found}) - 1
    others = f"; {more:,} more" if more else ""
    text += f" ({_percent(share)} of each step{others}){job.elsewhere}"
    return Verdict("late-rank", text, rank, stage, seconds, share)


def compared(job: JobFacts) -> list[tuple[str, Times, int]]:
    """Return the stages of the ranks of each group of several ranks, with the fewest steps of a rank."""
    found: dict[str, dict[int, RankFacts]] = {}
    for process in measured(job):
        for group, stages in process.stages.items():
            if process.rank is not None and stages and all(map(_plausible, stages.values())):
                found.setdefault(group, {})[process.rank] = process
    return [
        (group, {rank: each.stages[group] for rank, each in ranks.items()}, min(each.steps for each in ranks.values()))
        for group, ranks in sorted(found.items())
        if len(ranks) > 1 and cycle({rank: each.stages[group] for rank, each in ranks.items()}) > 0
    ]


def input_bound(job: JobFacts) -> Verdict | None:
    """Return the verdict about ranks that all wait for data; None if one of them does not."""
    shares = [share for each in measured(job) if (share := data_share(each)) is not None]
    if not shares or min(shares) < INPUT or any(map(_is_a_pause, measured(job))):
        return None
    least, most = _percent(min(shares)), _percent(max(shares))
    between = least if least == most else f"{least.removesuffix(' %')} to {most}"
    ranks = f", on all {len(shares):,} ranks" if len(shares) > 1 else ""
    tense = "went" if job.over else "goes"
    text = f"input-bound: {between} of each step {tense} into waiting for data{ranks}"
    return Verdict("input-bound", f"{text}{job.elsewhere}", None, "data", None, min(shares))


def checkpoint_bound(job: JobFacts) -> Verdict | None:
    """Return the verdict about checkpoints that take much of the time; None if they do not."""
    share, process = _largest([each for each in measured(job) if loop_ns(each) >= CHECKPOINT_PERIOD_NS], _SAVE)
    if process is None or share < CHECKPOINTS:
        return None
    who = f" of {named([process])}" if len(job.processes) > 1 else ""
    tense = "went" if job.over else "goes"
    text = f"checkpoint-bound: {_percent(share)} of the time{who} {tense} into saving checkpoints"
    return Verdict("checkpoint-bound", f"{text}{job.elsewhere}", process.rank, _SAVE, None, share)


def data_share(process: RankFacts) -> float | None:
    """Return the share of data in the steps of a process, by its stages, otherwise by its ledger; None without both."""
    parts = [0.0, 0.0]
    for stages in process.stages.values():
        if all(map(_plausible, stages.values())) and set(stages) <= set(STAGES):
            parts[0] += stages.get("data", 0.0)
            parts[1] += sum(stages.values())
    if not parts[1]:
        if process.data is not None:
            return process.data
        longest = process.longest_step * 1e9
        data, step = (max(process.activities.get(name, 0), 0) for name in ("data", "step"))
        pause = min(data, longest) if 0 <= longest < data + step else 0.0  # it may be all of the longest steps
        parts = [data - pause, data + step - pause]
    if not parts[1]:
        return 0.0 if loop_ns(process) else None  # the whole loop may be in another activity
    return parts[0] / parts[1]


def _longest(job: JobFacts, rank: int | None, group: str, stage: str) -> float:
    parts = (each.longest.get(group, {}).get(stage, 0.0) for each in job.processes if each.rank == rank)
    return max(parts, default=0.0)


def _is_a_pause(process: RankFacts) -> bool:
    """Return True if a few long waits explain the time for data in the stages."""
    data = [
        (stages.get("data", 0.0), process.longest.get(group, {}).get("data", 0.0))
        for group, stages in process.stages.items()
    ]
    return bool(data) and all(seconds <= PAUSES * longest for seconds, longest in data if seconds > 0)


def _recompiling(process: RankFacts) -> dict[str, int]:
    """Return the activities with ``compile`` divided: first compilations of a code are ``first compilation``.

    The counter has the time in all threads, so it may be more than that of the training thread.
    """
    found = dict(process.activities)
    again_ns = min(found.get("compile", 0), process.recompiling_ns)
    return {**found, "first compilation": found.get("compile", 0) - again_ns, "compile": again_ns}


def _largest(processes: Sequence[RankFacts], activity: str) -> tuple[float, RankFacts | None]:
    """Return the largest share of an activity in the time of a loop, and its process; None without a loop."""
    shares = [
        (each.activities.get(activity, 0) / time_ns, number)
        for number, each in enumerate(processes)
        if (time_ns := loop_ns(each)) > 0
    ]
    if not shares:
        return 0.0, None
    share, number = max(shares, key=lambda each: (each[0], -each[1]))
    return share, processes[number]


def _plausible(seconds: float) -> bool:
    return 0 <= seconds < _LONGEST_STAGE


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
