"""The rules about processes that have ended: ``dead``, ``failed`` and ``ended``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.console.text import duration
from monitel.console.verdict.result import Verdict, named, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.verdict.facts import JobFacts, RankFacts
    from monitel.console.verdict.result import Kind

#: Begin of the words for a death by ``os._exit(0)``: the program has ended as it wanted.
EXITED = "ended with exit code 0 "

_BEATS_NS = 2 * 10**9  # by which the last sign of life may be before the end
_UNKNOWN = "ended for an unknown reason"


def ended_badly(job: JobFacts) -> Verdict | None:
    """Return the verdict about the first process that has ended without completing; None if there is none.

    A process whose end is not known is the first one only if it has ended seconds before the others.
    """
    bad = [each for each in job.processes if each.state == "dead" or each.status == "failed"]
    until = min((_order(each) for each in bad), default=None)
    left = [each for each in job.processes if _has_exited(each) and (_order(each) < until if until else job.running)]
    unknown = _of_unknown_end(job)
    known = [*bad, *left]
    ended = [*known, *unknown]
    if not ended:
        return None
    first = min(ended, key=lambda each: _order(each, later_ns=_BEATS_NS if known and each in unknown else 0))
    alike = [each for each in ended if _how(each) == _how(first)]
    at = " before the first step" if first.step is None else f" at step {first.step:,}"
    text = f"{named(alike)} {_how(first)}{at}"
    if len(alike) > 1 and first.seen_ns > 0 and first not in unknown:
        text += f", {named([first])} first"
    kind: Kind = "dead" if first.state == "dead" else "failed" if first.status == "failed" else "ended"
    if kind == "ended" and first.silent_ns is not None:
        text += f", {duration(first.silent_ns)} ago"
    others = len(ended) - len(alike)
    doubtful = first not in unknown and any(each.seen_ns <= first.seen_ns + _BEATS_NS for each in unknown)
    if others:
        text += f"; {others:,} more ended{'' if doubtful else ' after it'}"
    going = _left(job.running)
    if kind == "ended":
        going = going or _running(job.running)
        going += "; look at the end of the output" if first in unknown else ""
    sure = len(alike) == 1 or (first.seen_ns > 0 and first not in unknown)
    return Verdict(kind, f"{kind}: {text}{going}{job.elsewhere}", first.rank if sure and not doubtful else None)


def _order(process: RankFacts, later_ns: int = 0) -> tuple[bool, int, bool]:
    return process.seen_ns <= 0, process.seen_ns + later_ns, process.state != "dead"


def _has_exited(process: RankFacts) -> bool:
    return process.state == "ended" and process.death.startswith(EXITED)


def _of_unknown_end(job: JobFacts) -> list[RankFacts]:
    """Return the processes of which it is not known how they ended.

    A process that has made as many steps as one that is known to have completed has done so too.
    """
    found = [each for each in job.processes if each.state == "ended" and not each.status and not _has_exited(each)]
    last = [each.step for each in job.processes if each.status == "completed" and each.step is not None]
    return [each for each in found if not (job.over and last and each.step is not None and each.step >= max(last))]


def _how(process: RankFacts) -> str:
    if process.state == "dead":
        return process.death or "died of an unknown cause"
    if process.status == "failed":
        return "failed"
    return process.death or _UNKNOWN


def _running(running: Sequence[RankFacts]) -> str:
    return f"; {named(running)} {verb(running, 'runs', 'run')} on" if running else ""


def _left(running: Sequence[RankFacts]) -> str:
    """Return the wait of the processes that are left, if most of them are in one."""
    waiting: dict[str, list[RankFacts]] = {}
    for process in running:
        for key in dict.fromkeys(wait.key for wait in process.waits):
            waiting.setdefault(key, []).append(process)
    for key, processes in waiting.items():
        if len(processes) * 2 > len(running):
            return f"; {named(processes)} {verb(processes, 'waits', 'wait')} in {key}"
    return ""
