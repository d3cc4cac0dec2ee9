"""A job: the processes of one attempt, and the verdict about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from monitel.console.lateness import ENOUGH_STEPS, Times, compared_times, stage_times
from monitel.console.verdict import Verdict, verdict
from monitel.runs.history import RunTime
from monitel.runs.process import COMPLETED, EXITED, STOPPED, JobName, Process, State

_TERMINATED = "killed by SIGTERM"
_STARTS_NS = 60 * 10**9  # within which the ranks of a job begin
_BEATS_NS = 2 * 10**9  # within which a process sends a heartbeat: it may have lived longer than the last one shows


@dataclass
class Job:
    """The processes of one attempt of a job, in the order of rank and process id: all of them over the same period."""

    name: JobName  # that they have in common
    attempt: int | None  # ``training.attempt``
    processes: tuple[Process, ...]

    @cached_property
    def verdict(self) -> Verdict:
        return verdict(self)

    # ---- the processes that the verdict is about

    @cached_property
    def counted(self) -> list[Process]:
        """One readable process of each rank, the one that makes steps, and those without a rank that are not helpers.

        Helpers make no steps, and others do, or another process of the job has started them.
        """
        ranks: dict[int, Process] = {}
        others = []
        for each in self.processes:
            if each.problem:
                continue
            if each.rank is None:
                others.append(each)
            elif each.rank not in ranks or _relevance(each) > _relevance(ranks[each.rank]):
                ranks[each.rank] = each
        chosen = [*(ranks[rank] for rank in sorted(ranks)), *others]
        steps, keys = any(each.makes_steps for each in chosen), {each.key for each in chosen}
        return [
            each for each in chosen if each.rank is not None or each.makes_steps or not (steps or each.parent in keys)
        ]

    @cached_property
    def running(self) -> list[Process]:
        return [each for each in self.counted if each.runs]

    @property
    def over(self) -> bool:
        return not self.running

    @property
    def present(self) -> list[Process]:
        """Processes whose present is looked at: they run, or at the end somebody has ended them."""
        return self.running or [each for each in self.counted if each.status in STOPPED]

    @cached_property
    def measured(self) -> list[Process]:
        return [each for each in self.counted if each.made >= ENOUGH_STEPS]

    @cached_property
    def times(self) -> Mapping[str, Times]:
        """The usual times of the stages of each group of several ranks with enough steps."""
        return compared_times(self.measured)

    def stages(self, process: Process) -> Mapping[str, Mapping[str, float]]:
        """Return the usual times of the stages of a process: those in which it is compared, else those on the host."""
        rank = process.rank
        found = {group: times[rank] for group, times in self.times.items() if rank is not None and rank in times}
        return found or stage_times(process)

    # ---- all processes

    @property
    def stepping(self) -> list[Process]:
        return [each for each in self.processes if each.made]

    @property
    def world_size(self) -> int:
        """The number of ranks, on other machines too; 0 if it is not known."""
        return max((each.world_size or 0 for each in self.counted), default=0)

    @property
    def deaths(self) -> list[Process]:
        """The processes that died, the first one first; not helpers that their parent has ended."""
        ends = self._ends(helpers=False) + [each for each in self._ends(helpers=True) if not _is_usual(each.death)]
        return sorted((each for each in ends if each.has_died), key=lambda each: each.seen_ns)

    @property
    def unfinished(self) -> list[Process]:
        """The processes that ended by themselves, and did not complete; not helpers that were preempted."""
        ends = self._ends(helpers=False) + [each for each in self._ends(helpers=True) if each.status not in STOPPED]
        return [each for each in ends if each.status not in {"", COMPLETED} and not each.has_died]

    def _ends(self, *, helpers: bool) -> list[Process]:
        """Return the helpers, or the others. A helper of a rank, whose variables it has inherited, is not the rank."""
        main, parent_of = {*map(id, self.counted)}, _parents(self.processes)
        found = [each for each in self.processes if (id(each) not in main) == helpers]
        return [
            each.but(rank=None) if helpers and (parent := parent_of(each)) and parent.rank == each.rank else each
            for each in found
        ]

    @property
    def time(self) -> RunTime | None:
        """The time of the run from rank zero; without that, of the first rank."""
        whole = [each.run_time for each in self.processes if each.run_time is not None]
        first = next((each for each in self.stepping if each.activities), None)
        if whole or first is None:
            return max(whole, key=lambda time: time.elapsed_ns, default=None)
        on_device = any(key.device for key in first.stages)
        stages = Counter[str]()
        for key, total in first.stages.items():
            stages[key.stage] += round(total.sum * 1e9) if key.device == on_device else 0
        return RunTime(first.job.run, first.activities, 1, first.seen_ns, stages=+stages)


def _relevance(process: Process) -> tuple[bool, bool, int]:
    return process.step is not None, process.runs, process.seen_ns


def _is_usual(death: str) -> bool:
    return death in {"", _TERMINATED} or death.startswith(EXITED)


# ---- the processes that belong together


def jobs_of(processes: Iterable[Process]) -> list[Job]:
    """Return the jobs in the order of their names.

    The processes of a job have the same names and the same attempt. A process without a rank belongs to the job of the
    process that has started it, or of the ranks that it has started; otherwise it is a job. Without a run id launchers
    distinguish jobs, but only if two of them have started the same rank: otherwise each rank may have a shell for a
    parent, or the first rank may have started the others.
    """
    known = _with_names(with_pool_workers_completed([*processes]))
    roots = {id(each): root for each, root in zip(known, _roots(known), strict=True)}
    launches = {id(roots[id(each)]) for each in known if each.rank is not None}
    found: dict[tuple[object, ...], list[Process]] = {}
    for each in known:
        root = roots[id(each)]
        alone = root.rank is None and each.rank is None and id(root) not in launches
        place = (root.host, root.pid or 0, str(root.box)) if alone else ()
        found.setdefault((*each.job, each.attempt or 0, place), []).append(each)
    jobs = []
    for key in sorted(found):
        started = {
            (each.rank, parent) for each in found[key] if each.rank is not None and (parent := roots[id(each)].parent)
        }
        several = not found[key][0].job.run and len(started) > len({rank for rank, _ in started})
        by_launcher: dict[str, list[Process]] = {}
        for each in found[key]:
            by_launcher.setdefault(roots[id(each)].parent if several else "", []).append(each)
        for of_job in by_launcher.values():
            of_job.sort(key=lambda each: (-1 if each.rank is None else each.rank, each.pid or 0, each.started_ns))
            jobs.append(Job(of_job[0].job, of_job[0].attempt, tuple(of_job)))
    return jobs


def with_pool_workers_completed(processes: Sequence[Process]) -> list[Process]:
    """Return processes; those that SIGTERM has ended have completed if their parent has, or runs on, as a Pool does."""
    parent_of = _parents([each for each in processes if each.runs or each.status == COMPLETED])
    ended: dict[str, Any] = {"state": State.ENDED, "death": "", "status": COMPLETED}
    return [each.but(**ended) if each.death == _TERMINATED and parent_of(each) else each for each in processes]


def _with_names(processes: Sequence[Process]) -> list[Process]:
    """Return processes; one that has ended before it had a name belongs to the only job with its run id."""
    names: dict[str, set[JobName]] = {}
    for each in processes:
        if each.job.run and each.job.own_service:
            names.setdefault(each.job.run, set()).add(each.job)
    only = {run: of.pop() for run, of in names.items() if len(of) == 1}
    return [each if each.job.own_service else each.but(job=only.get(each.job.run, each.job)) for each in processes]


def _parents(processes: Sequence[Process]) -> Callable[[Process], Process | None]:
    """Return a function for the parent of a process among these.

    On two machines, or in two containers, processes may have the same id and start time.
    """
    found = {(each.owner[1:3], each.key): each for each in processes if each.owner}
    return lambda each: found.get((each.owner[1:3], each.parent)) if each.owner else None


def _roots(processes: Sequence[Process]) -> list[Process]:
    """Return for each process the outermost one, with the same names, that has started it or its parents."""
    parent_of, found = _parents(processes), []
    for each in processes:
        root, seen = each, {id(each)}
        while (parent := parent_of(root)) is not None and id(parent) not in seen and parent.job == each.job:
            seen.add(id(parent))
            root = parent
        found.append(root)
    return found


def replaced(processes: Sequence[Process]) -> list[Process]:
    """Return the ended processes whose place another process has taken.

    While processes of a launcher run, no other one replaces those of it: two jobs without a run id may have one name.
    """
    launchers = ["" if each.job.run else root.parent for each, root in zip(processes, _roots(processes), strict=True)]
    by_name: dict[JobName, list[tuple[Process, str]]] = {}
    for each, launcher in zip(processes, launchers, strict=True):
        by_name.setdefault(each.job, []).append((each, launcher))
    running = {(each.job, launcher) for each, launcher in zip(processes, launchers, strict=True) if each.runs}
    return [
        old
        for old, launcher in zip(processes, launchers, strict=True)
        if not old.runs
        and any(
            _replaces(new, old)
            for new, of_new in by_name[old.job]
            if of_new == launcher or (old.job, launcher) not in running
        )
    ]


def _replaces(new: Process, old: Process) -> bool:
    """Return True for the same rank or process, a later attempt, or a start of the job a minute after an end."""
    is_later = new.started_ns > max(old.started_ns, old.seen_ns + _BEATS_NS)
    if old.rank is None or new.rank is None or (new.host, new.pid) == (old.host, old.pid):
        return is_later and (new.host, new.pid) == (old.host, old.pid)
    again = (new.attempt or 0) > (old.attempt or 0) or new.started_ns > old.seen_ns + _STARTS_NS
    return again or (is_later and new.rank == old.rank)
