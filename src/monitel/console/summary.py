"""The summary at the end of ``monitel run``: a block for each job, and the outcome of the items of all processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TextIO

from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.process import Owner
from monitel.console.job import Job, jobs_of, with_pool_workers_completed
from monitel.console.outcome import outcome, record_command
from monitel.console.reader import within
from monitel.console.report import is_wanted, write_job
from monitel.console.runs import Run, is_given, run_in, with_loss
from monitel.console.verdict import SET_STEP
from monitel.runs.ended import read_ends
from monitel.runs.folder import LEDGERS, correct_status
from monitel.runs.process import COMPLETED, EXITED, JobName, Process, State, ended_by
from monitel.runs.shares import ledger_line, shows_work
from monitel.runs.stored import StoredError
from monitel.text import UNLIMITED, Screen, counted, duration, labelled, named, near, printable, step_rate, wrapped

_START = "monitel run: "
_INDENT = len("  exported  ")
_JOBS = 5  # at most
_SHOWN, _RANKS = 3, 6  # lines of a row, and ranks in a list, at most
_PAGES_S, _LEDGERS_S = 5.0, 1.0  # seconds for the reports, and for reading the ledgers
_CHILDREN = "children of multiprocessing are not recorded: call monitel_otlp.configure() in them"


def print_summary(
    folder: Path,
    stream: TextIO | None = None,
    *,
    cause: Callable[[Owner], tuple[str, int] | None] = lambda _owner: None,
    running: Iterable[str] = (),
    children: bool = False,
    command: Sequence[str] = (),
) -> None:
    """Print the summary of all processes that have stored their end in the folder of the run. Never raises.

    ``cause`` returns how a process ended, in words, and when, Unix ns; ``running`` are the keys of processes that ran
    when the command ended. There may be children of multiprocessing that are not recorded. Reports get their names from
    the command.
    """
    stream = sys.stderr if stream is None else stream
    with suppress(Exception):  # the stream may be closed
        reported, problems = read_ends(folder)
        reported = [each for each in reported if each.owner is not None]
        found = with_pool_workers_completed(
            [with_cause(each, cause(each.owner)) for each in reported if each.owner is not None]
        )
        for each, process in zip(reported, found, strict=True):
            if process.status != each.status and each.pid is not None and each.store:
                correct_status(Path(each.store), each.pid, each.started_ns, process.status)
        if children and not any(each.made for each in found):
            problems.append(_CHILDREN)
        pids = [key.partition("-")[0] for key in running if key not in {each.key for each in found}]
        found = _with_losses(found)
        pages = write_pages(found, command, problems)
        lines = summary_lines(found, problems, Screen.of(stream), running=pids, pages=pages)
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()


def _with_losses(processes: Sequence[Process]) -> list[Process]:
    """Return processes; those of rank zero with the last loss of their run. A disk that hangs is left."""
    runs: dict[str, Run | None] = {}

    def read(store: str) -> None:
        with suppress(OSError, FolderError, StoredError), closing(Folder.open(Path(store), check=False)) as folder:
            runs[store] = run_in(folder)

    within(_LEDGERS_S, *(partial(read, store) for store in {each.store for each in processes if each.store}))
    return [with_loss(each, runs.get(each.store)) for each in processes]


def with_cause(process: Process, cause: tuple[str, int] | None) -> Process:
    """Return a process with its end as its parent has seen it: another exit status than 0 is a failure."""
    if cause is None or process.is_replaced:
        return process
    how, time_ns = cause
    if process.death or process.state is State.DEAD:
        age_ns = process.step_age_ns
        if age_ns is not None:
            age_ns = max(age_ns + time_ns - process.seen_ns, 0)
        return replace(process, **ended_by(how), seen_ns=time_ns, observed=True, step_age_ns=age_ns)
    if process.status in {COMPLETED, "failed"} and not how.startswith(EXITED):
        how = how.removesuffix(" without a shutdown").replace("ended with exit code", "exit status")
        return replace(process, status="failed", exception=process.exception or (how, "", ""))
    return process


def summary_lines(
    processes: Iterable[Process],
    problems: Sequence[str],
    screen: Screen,
    *,
    running: Sequence[str] = (),
    pages: Mapping[int, Path] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of the summary of processes at their ends, with the process ids of those that still run.

    There may be a page about a job, by its number.
    """
    processes = [*processes]
    shown, rows = _shown(processes), [*outcome(processes)]
    lines: list[str] = []
    for number, jobs in enumerate(shown[:_JOBS]):
        header = f"{'' if lines else _START}{_header(jobs)}"
        lines += wrapped(printable(header), screen.width, widest=UNLIMITED)
        lines += [line for label, texts in _rows(jobs) for line in _lines(label, texts, screen)]
        if (place := pages.get(number)) is not None:
            lines += _lines("report", [near(place)], screen)
    if len(shown) > _JOBS:
        lines.append(f"and {len(shown) - _JOBS:,} more jobs")
    nothing = "no recorded process has ended" if running and not processes else "nothing was recorded"
    lines = lines or wrapped(f"{_START}{f'no training steps; {SET_STEP}' if rows else nothing}", screen.width)
    if running:
        more = f" and {len(running) - _RANKS:,} more" if len(running) > _RANKS else ""
        what = f"{'process' if len(running) == 1 else 'processes'} {', '.join(running[:_RANKS])}{more}"
        rows.insert(0, ("running", f"{what}, after the end of the command; see monitel top"))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        rows.append(("missing", f"{problems[0]}{more}"))
    return lines + [line for label, text in rows for line in _lines(label, [text], screen)]


def _shown(processes: Iterable[Process]) -> list[list[Job]]:
    """Return the attempts of each job that there is something to say about."""
    attempts: dict[tuple[JobName, object], list[Job]] = {}  # of each job
    for job in jobs_of(processes):
        first = job.processes[0]
        attempts.setdefault((job.name, None if first.rank is not None else first.owner), []).append(job)
    return [jobs for jobs in attempts.values() if any(map(_is_shown, jobs))]


def _is_shown(job: Job) -> bool:
    """Return True for a job with steps or a failure, and for a run that ``start()`` has begun: it has a page."""
    begun = any(each.store and Path(each.store).parent.name != LEDGERS for each in job.processes)
    return bool(begun or job.stepping or job.deaths or job.unfinished)


def write_pages(processes: Sequence[Process], command: Sequence[str], problems: list[str]) -> dict[int, Path]:
    """Write a report of each job, and return the paths by the numbers of the jobs; a disk that hangs is left.

    The report is in the folder of a run that :func:`monitel.start` has begun, or else in a new folder of this kind.
    """
    pages: dict[int, Path] = {}

    def write() -> None:
        try:
            for number, jobs in enumerate(_shown(processes)[:_JOBS] if is_wanted() else ()):
                pages[number] = write_job(jobs, command)
        except Exception as error:
            problems.append(f"the report cannot be written: {error}")

    within(_PAGES_S, write)
    return pages.copy()


def _lines(label: str, texts: Sequence[str], screen: Screen) -> Iterator[str]:
    """Yield the lines of texts, which may be from outside, each on separate lines, beside a label."""
    for place, text in enumerate(texts[:_SHOWN]):
        yield from labelled("" if place else f"  {label}", printable(text), screen.width, _INDENT, widest=UNLIMITED)
    if len(texts) > _SHOWN:
        yield from labelled("", f"and {len(texts) - _SHOWN:,} more", screen.width, _INDENT)


def _last(jobs: Sequence[Job]) -> Job:
    """Return the last attempt with steps; without steps the last one."""
    return next((each for each in reversed(jobs) if each.stepping), jobs[-1])


def _header(jobs: Sequence[Job]) -> str:
    """Return the name of a job, its ranks, steps and rate."""
    last = _last(jobs)
    stepping, name = last.stepping, last.name
    parts = []
    if service := name.own_service:
        parts.append("/".join(filter(None, (name.namespace, service))))
    if is_given(name.run):
        parts.append(f"run {name.run}")
    ranks = {each.rank for each in stepping or last.processes} - {None}
    if 0 < len(ranks) < last.world_size:
        parts.append(f"{len(ranks):,} of {last.world_size:,} ranks (those with reports on this machine)")
    elif len(ranks) > 1:
        parts.append(f"{len(ranks):,} ranks")
    if len(jobs) > 1:
        parts.append(f"{len(jobs):,} attempts")
    which = f" in attempt {last.attempt}" if stepping and len(jobs) > 1 else ""
    rates = [rate for each in stepping if (rate := each.mean_rate) is not None]
    return ", ".join([*parts, f"{_steps(stepping)}{which}", *([step_rate(median(rates))] if rates else [])])


def _steps(processes: Sequence[Process]) -> str:
    if not processes:
        return "no steps"
    made = [each.made for each in processes]
    least, most = min(made), max(made)
    steps = counted(most, "step") if least == most else f"{least:,} to {most:,} steps"
    firsts = [each.first_step for each in processes if each.first_step is not None]
    lasts = [each.step for each in processes if each.step is not None]
    if firsts and lasts and min(firsts) > 1:
        steps += f" (steps {min(firsts):,} to {max(lasts):,})"  # resumed
    skipped = max(each.skipped for each in processes)
    return f"{steps} ({skipped:,} skipped)" if skipped else steps


def _rows(jobs: Sequence[Job]) -> list[tuple[str, list[str]]]:
    """Return the rows of the attempts of a job, each with a label and texts."""
    times = [time for each in jobs if (time := each.time) is not None and any(p.run_time for p in each.processes)]
    time = max(times, key=lambda each: each.elapsed_ns, default=_last(jobs).time)
    ledger = [ledger_line(time)] if time is not None and shows_work(time) else []
    deaths = sorted((each for job in jobs for each in job.deaths), key=lambda each: each.seen_ns)
    endings = [text for job in reversed(jobs) for text in _endings(job, several=len(jobs) > 1)]
    return [
        ("verdict", [jobs[-1].verdict.text]),
        ("ledger", ledger),
        ("died", [*map(_death, deaths)]),
        ("ended", endings),
        ("earlier", [*_earlier_runs(_last(jobs).processes[0])]),
    ]


def _earlier_runs(process: Process) -> Iterator[str]:
    """Yield the runs that a process has ended before its last one, the latest first."""
    runs = {each.before_ns: each for each in process.reports if each.before_ns != process.before_ns}
    for each in reversed(runs.values()):
        name = f"run {each.job.run}" if is_given(each.job.run) else each.job.own_service
        name = name or f"a run of {counted(each.made, 'step')}"
        yield f"{name} {each.status}{f': {each.failure}' if each.status == 'failed' and each.failure else ''}"


def _death(process: Process) -> str:
    text = f"{named([process])} {process.how}"
    if process.step is not None:
        text += f" at step {process.step:,}"
        if process.step_age_ns is not None and process.observed:
            text += f", {duration(process.step_age_ns)} after its last step"
    if process.last_place:
        text += f", in {process.last_place}"
    if process.failure:
        text += f"; {process.failure}"
    return f"{text}; {record_command(process) or 'see the event process.died'}"


def _endings(job: Job, *, several: bool) -> Iterator[str]:
    """Yield a text for each exception that has ended processes, and for each status."""
    suffix = f" in attempt {job.attempt or 0}" if several else ""
    found: dict[tuple[str, str], list[Process]] = {}
    for status in ("failed", "interrupted", "preempted"):
        for each in sorted(job.unfinished, key=lambda process: process.seen_ns):
            if each.status == status:
                found.setdefault((status, each.failure if status == "failed" else ""), []).append(each)
    for (status, failure), ended in found.items():
        ranks = [each for each in ended if each.rank is not None]
        who = named(ended, _RANKS if len(ranks) == len(ended) else 4)
        yield f"{who}{suffix}: {failure}" if failure else f"{who} {status}{suffix}"
