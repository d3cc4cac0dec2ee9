"""The text about one job: its steps, verdict, ledger, late ranks, deaths and failures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitel.console.ledger.last_line import ledger_lines, shows_work
from monitel.console.summary.jobs import facts_of
from monitel.console.text import duration, wrapped
from monitel.console.verdict.rules import verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from monitel.console.summary.jobs import Job
    from monitel.console.summary.report import Report
    from monitel.console.text import Screen

_SHOWN, _RANKS = 3, 6  # lines of a row, and ranks in a list, at most
_DIGITS = 3
_SAME = 1.02  # rates of ranks that differ less are the same


def header(job: Job, screen: Screen) -> str:
    """Return the name of a job, its ranks, steps and rate."""
    last = job.last
    parts = []
    if job.name.service and not job.name.service.startswith("unknown_service"):
        parts.append(screen.printable("/".join(filter(None, (job.name.namespace, job.name.service)))))
    ranks = {each.rank for each in last or job.processes} - {None}
    if 0 < len(ranks) < job.world_size:
        parts.append(f"{len(ranks):,} of {job.world_size:,} ranks (those with reports on this machine)")
    elif len(ranks) > 1:
        parts.append(f"{len(ranks):,} ranks")
    if job.attempts > 1:
        parts.append(f"{job.attempts:,} attempts")
    which = f" in attempt {last[0].attempt}" if last and job.attempts > 1 else ""
    return ", ".join([*parts, f"{_steps(last)}{which}", *_rates(last)])


def _steps(processes: Sequence[Report]) -> str:
    if not processes:
        return "no steps"
    made = [each.made for each in processes]
    least, most = min(made), max(made)
    steps = f"{most:,} step{'' if most == 1 else 's'}" if least == most else f"{least:,} to {most:,} steps"
    firsts = [each.first_step for each in processes if each.first_step is not None]
    lasts = [each.last_step for each in processes if each.last_step is not None]
    if firsts and lasts and min(firsts) > 1:
        steps += f" (steps {min(firsts):,} to {max(lasts):,})"  # resumed
    skipped = max(each.skipped for each in processes)
    return f"{steps} ({skipped:,} skipped)" if skipped else steps


def _rates(processes: Iterable[Report]) -> Iterator[str]:
    rates = sorted((each.rate, _who(each)) for each in processes if each.rate is not None)
    if not rates:
        return
    (slowest, slowest_rank), (fastest, fastest_rank) = rates[0], rates[-1]
    if fastest <= _SAME * slowest:
        yield _rate(slowest)
    else:
        yield f"{_rate(slowest)} ({slowest_rank}) to {_rate(fastest)} ({fastest_rank})"


def _rate(rate: float) -> str:
    if rate < 1:
        return f"{_number(1 / rate)} s per step"
    return f"{_number(rate)} steps/s"


def _number(number: float) -> str:
    """Return a number with three digits, or as a whole number."""
    return f"{number:,.{max(_DIGITS - len(str(int(number))), 0)}f}"


def rows(job: Job, screen: Screen, width: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the label and the lines of each row.

    Args:
        job: The job.
        screen: The stream that the lines are printed to.
        width: Columns of a line.
    """
    yield "verdict", wrapped(screen.printable(verdict(facts_of(job)).text), width, whole=True)
    time = job.time
    if time is not None and shows_work(time):
        lines = ledger_lines(time, screen, width)  # in a terminal they have the width, and colours
        yield "ledger", lines if screen.terminal else _wrapped(lines, width)
    deaths = (f"{_who(each)} {_death(each, screen)}" for each in job.deaths)
    endings = _endings(job.unfinished, screen, several=job.attempts > 1)
    for label, texts in (("late", _late(job, screen)), ("died", _first(deaths)), ("ended", _first(endings))):
        if lines := _wrapped(texts, width):
            yield label, lines


def _wrapped(texts: Iterable[str], width: int) -> list[str]:
    """Return lines, each text in new ones."""
    return [line for text in texts for line in wrapped(text, width, whole=True)]


def _late(job: Job, screen: Screen) -> Iterator[str]:
    compared = job.compared()
    if not compared:
        return
    found = [
        f"rank {each.rank}{f' of group {screen.printable(each.group)}' if each.group else ''}, "
        f"{screen.printable(each.stage)}, {1000 * each.seconds:,.1f} ms a step ({100 * each.share:.0f} % of the cycle)"
        for each in job.late()
    ]
    ranks = len({rank for times in compared.values() for rank in times})
    yield from _first(found) or [f"none of {ranks:,} ranks"]
    if ranks < job.world_size:
        yield f"(compared: {ranks:,} of {job.world_size:,} ranks)"


def _death(report: Report, screen: Screen) -> str:
    text = screen.printable(report.death)
    if report.last_step is not None:
        text += f" at step {report.last_step:,}"
        if report.step_age_ns is not None:
            text += f", {duration(report.step_age_ns)} after its last step"
    left = os.path.lexists(report.spool_dir)  # else its telemetry is delivered
    return f"{text}; {f'monitel autopsy {report.owner.pid}' if left else 'see the event process.died'}"


def _endings(processes: Sequence[Report], screen: Screen, *, several: bool) -> Iterator[str]:
    """Yield a text for each attempt and status, such as ``rank 1 failed``."""
    for attempt in sorted({each.attempt for each in processes}, reverse=True):
        for status in ("failed", "interrupted", "preempted"):
            ended = [each for each in processes if (each.attempt, each.status) == (attempt, status)]
            if ended:
                suffix = f" in attempt {attempt}" if several else ""
                yield f"{_all(ended)} {screen.printable(status)}{suffix}"


def _all(processes: Sequence[Report]) -> str:
    """Return the ranks of processes in words."""
    if any(each.rank is None for each in processes):
        return _who(processes[0]) if len(processes) == 1 else f"{len(processes):,} processes"
    ranks = [f"{rank}" for rank in sorted({each.rank for each in processes if each.rank is not None})]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _RANKS:
        return f"ranks {', '.join(ranks[:_RANKS])} and {len(ranks) - _RANKS:,} more"
    return f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def _who(report: Report) -> str:
    return f"process {report.owner.pid}" if report.rank is None else f"rank {report.rank}"


def _first(texts: Iterable[str]) -> list[str]:
    """Return the first texts, and the number of the others."""
    found = list(texts)
    more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    return [*found[:_SHOWN], *more]
