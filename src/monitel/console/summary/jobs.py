"""The jobs of a run: processes with the same names, their attempts, the late ranks, and the facts for a verdict."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from monitel.console.ledger.shares import RunTime
from monitel.console.summary.report import StageTotal, Total
from monitel.console.verdict.endings import EXITED
from monitel.console.verdict.facts import RankFacts
from monitel.console.verdict.lateness import cycle, suspects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from monitel.blackbox.process import Owner
    from monitel.console.summary.report import JobName, Report
    from monitel.console.verdict.lateness import Times

COMPLETED = "completed"


class LateRank(NamedTuple):
    """A rank for which the others wait.

    Attributes:
        seconds: Seconds per cycle by which it is later than the median of the ranks in the stage.
        rank: The rank.
        stage: The stage.
        group: Name of the group of ranks; empty for the group of all ranks.
        share: The seconds as a share of the cycle.
    """

    seconds: float
    rank: int
    stage: str
    group: str
    share: float


@dataclass(frozen=True)
class Job:
    """The processes of one job.

    Attributes:
        name: The names that they have in common.
        processes: A report for each process, in the order of attempt, rank and process id.
    """

    name: JobName
    processes: Sequence[Report]

    @property
    def attempts(self) -> int:
        """Number of attempts that have left a report."""
        return len({each.attempt for each in self.processes})

    @property
    def last(self) -> list[Report]:
        """The processes of the last attempt that have made steps."""
        stepping = [each for each in self.processes if each.made]
        latest = max((each.attempt for each in stepping), default=None)
        return [each for each in stepping if each.attempt == latest]

    @property
    def world_size(self) -> int:
        """The number of ranks, on other machines too; 0 if it is not known."""
        return max((each.world_size or 0 for each in self.last or self.processes), default=0)

    @property
    def deaths(self) -> list[Report]:
        """The processes that died, the first one first."""
        return sorted((each for each in self.processes if each.death), key=lambda each: each.time_ns)

    @property
    def unfinished(self) -> list[Report]:
        """The processes that ended by themselves, and did not complete."""
        return [each for each in self.processes if each.status not in {"", COMPLETED} and not each.death]

    @property
    def time(self) -> RunTime | None:
        """The time of the run from rank zero; without that, of the first rank of the last attempt."""
        whole = [each.run_time for each in self.processes if each.run_time is not None]
        if whole:
            return max(whole, key=lambda time: time.elapsed_ns)
        first = next((each for each in self.last if each.activities), None)
        if first is None:
            return None
        elapsed_ns = sum(first.activities.values())
        times = first.time_ns - elapsed_ns, first.time_ns
        return RunTime(first.job.run, first.activities, elapsed_ns, 1, *times, ended=not first.death)

    def compared(self) -> dict[str, Times]:
        """Return the seconds of the stages of the last attempt, by group; only of groups of several ranks."""
        return {group: times for group, times in _times(self.last).items() if len(times) > 1}

    def late(self) -> list[LateRank]:
        """Return the ranks for which the others wait, the latest first."""
        found = [
            LateRank(seconds, rank, stage, group, seconds / cycle(times))
            for group, times in self.compared().items()
            for seconds, rank, stage in suspects(times)
        ]
        return sorted(found, reverse=True)


def jobs_of(reports: Iterable[Report]) -> list[Job]:
    """Return the jobs in the order in which their first processes ended."""
    found: dict[JobName, list[Report]] = {}
    for report in _by_process(reports):
        found.setdefault(_name_among(found, report.job), []).append(report)
    return [Job(name, sorted(each, key=_order)) for name, each in found.items()]


def _name_among(known: Iterable[JobName], name: JobName) -> JobName:
    """Return the name, or a known one that differs only in the launcher, if one of both launchers is not known."""
    for each in known:
        if each._replace(launcher="") == name._replace(launcher="") and "" in {each.launcher, name.launcher}:
            return each
    return name


def _order(report: Report) -> tuple[int, int, str]:
    return report.attempt, -1 if report.rank is None else report.rank, report.owner.pid


def _by_process(reports: Iterable[Report]) -> list[Report]:
    """Return one report for each process, the oldest first. A process may have had several pipelines."""
    found: dict[Owner, Report] = {}
    for report in sorted(reports, key=lambda each: each.time_ns):
        earlier = found.pop(report.owner, None)
        found[report.owner] = report if earlier is None else _combined(earlier, report)
    return list(found.values())


def _combined(earlier: Report, later: Report) -> Report:
    """Return the reports of two pipelines of one process as one: only the totals of series start again."""
    stages: defaultdict[tuple[str, str, bool], Total] = defaultdict(Total)
    for each in (*earlier.stages, *later.stages):
        key = each.stage, each.group, each.device
        stages[key] = stages[key].plus(each.total)
    return replace(
        later,
        rank=earlier.rank if later.rank is None else later.rank,
        first_step=earlier.first_step if later.first_step is None else later.first_step,
        step_time=earlier.step_time.plus(later.step_time),
        stages=tuple(StageTotal(*key, total) for key, total in stages.items()),
        run_time=later.run_time or earlier.run_time,
    )


def times_of(process: Report, *, on_device: bool) -> dict[str, dict[str, float]]:
    """Return the usual seconds of the stages of a process by group, on the host or on the device."""
    found: dict[str, dict[str, float]] = {}
    for each in process.stages:
        if each.device == on_device and each.total.count:
            found.setdefault(each.group, {})[each.stage] = each.total.usual
    return found


def _times(processes: Iterable[Report]) -> dict[str, Times]:
    """Return the mean seconds of the stages of each rank, by group: on the device if all ranks have them there."""
    host: dict[str, dict[int, Mapping[str, float]]] = defaultdict(dict)
    device: dict[str, dict[int, Mapping[str, float]]] = defaultdict(dict)
    for process in sorted(processes, key=lambda each: each.time_ns):
        if process.rank is not None:
            for found, on_device in ((host, False), (device, True)):
                for group, stages in times_of(process, on_device=on_device).items():
                    found[group][process.rank] = stages
    return {
        group: device[group] if device[group].keys() >= host[group].keys() else host[group]
        for group in sorted({*host, *device})
    }


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
        compared: The stages of all ranks that are compared, from :meth:`monitel.console.summary.jobs.Job.compared`.
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
