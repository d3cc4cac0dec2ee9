"""The facts about the processes of a job over the whole run, for a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel_otlp.summary.jobs import times_of
from monitel_otlp.verdict.endings import EXITED
from monitel_otlp.verdict.facts import RankFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitel_otlp.summary.jobs import Job
    from monitel_otlp.summary.report import Report
    from monitel_otlp.verdict.lateness import Times


def facts_of(job: Job) -> Iterator[RankFacts]:
    """Yield the facts about the processes of the last attempt."""
    latest = max(each.attempt for each in job.processes)
    compared = job.compared()
    for process in job.processes:
        if process.attempt == latest:
            dead = bool(process.death) and not process.death.startswith(EXITED)
            yield RankFacts(
                pid=process.owner.pid,
                rank=process.rank,
                world_size=process.world_size,
                state="dead" if dead else "ended",
                death=process.death,
                status=process.status,
                seen_ns=process.time_ns,
                step=process.last_step if _has_stepped(process) else None,
                step_age_ns=process.step_age_ns if dead else _unused_ns(process),
                steps=process.made,
                step_seconds=process.step_time.sum / process.step_time.count if process.step_time.count else None,
                rate=process.rate,
                longest_step=process.step_time.largest,
                activities=process.activities,
                recompilations=process.recompilations,
                recompiling_ns=process.recompiling_ns,
                stages=stages_of(process, compared),
                longest=longest_of(process),
            )


def _has_stepped(process: Report) -> bool:
    """Return True if the process has set a step itself. A forked child begins with the step of its parent."""
    return process.made > 0 or process.step_ns is not None


def _unused_ns(process: Report) -> int | None:
    """Return the time that a process has at least spent in its steps after the last one; None if it is not known.

    The times from step to step contain more than steps: batches, checkpoints, evaluations. So this is too small, if
    anything.
    """
    if not process.step_time.count:
        return None
    in_steps_ns = process.activities.get("step", 0) + process.activities.get("stuck", 0)
    return max(in_steps_ns - round(process.step_time.sum * 1e9), 0)


def stages_of(process: Report, compared: Mapping[str, Times]) -> Mapping[str, Mapping[str, float]]:
    """Return the mean seconds of the stages of a process, by group: those in which it is compared, otherwise its own.

    Args:
        process: The process.
        compared: The stages of all ranks that are compared, from :meth:`monitel_otlp.summary.jobs.Job.compared`.
    """
    rank = process.rank
    found = {group: times[rank] for group, times in compared.items() if rank is not None and rank in times}
    return found or times_of(process, on_device=False)


def longest_of(process: Report) -> Mapping[str, Mapping[str, float]]:
    """Return the part of the mean of each stage that the longest cycle of each window is, by group."""
    found: dict[str, dict[str, float]] = {}
    for each in process.stages:
        if not each.total.windows or not each.total.count:
            continue
        of_group, part = found.setdefault(each.group, {}), each.total.largest / each.total.count
        of_group[each.stage] = max(part, of_group.get(each.stage, 0.0))  # of host and device
    return found
