"""The parts of the time of a run in percent, which add up to 100, the largest overhead, and the line about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from monitel.runs.history import REPEATED, STEP, RunTime
from monitel.text import cut, duration, percent, printable, warn
from monitel.training.activities import ACTIVITIES
from monitel.training.counters import DOWN

_ENOUGH = 95  # percent in steps, above which the overhead is not the news
_ORDER = {name: number for number, name in enumerate((*ACTIVITIES, DOWN, REPEATED))}  # of activities of the same length
_MOST = 6  # parts in a line
_LONGEST_NAME = 40  # columns

#: The activities as they continue "of the time went into".
_PHRASES = {
    "startup": "starting up",
    "init": "initialization",
    "compile": "compilation",
    "data": "waiting for data",
    STEP: "steps",
    "checkpoint.save": "saving checkpoints",
    "checkpoint.load": "loading checkpoints",
    "evaluation": "evaluation",
    "stuck": "waits that were stuck",
    "other": "work that belongs to no activity",
    "shutdown": "shutting down",
    DOWN: "downtime between attempts",
    REPEATED: "steps that had to be repeated after a restart",
}


class Part(NamedTuple):
    """The time of one activity."""

    name: str
    time_ns: int  # above 0
    percent: int  # all parts of a run add up to 100

    @property
    def share(self) -> str:
        """The share in words."""
        return f"{self.percent} %" if self.percent else "<1 %"


def parts_of(activities: Mapping[str, int]) -> list[Part]:
    """Return the parts of a run's time that are above 0: ``step``, then the overheads, the largest first."""
    found = [(name, time_ns) for name, time_ns in activities.items() if time_ns > 0]
    found.sort(key=lambda each: (each[0] != STEP, -each[1], _ORDER.get(each[0], len(_ORDER)), each[0]))
    percents = _percents([time_ns for _, time_ns in found]) if found else []
    return [Part(*each, percent) for each, percent in zip(found, percents, strict=True)]


def largest_overhead(parts: Sequence[Part]) -> Part | None:
    """Return the largest part that is not ``step``; None if there is none."""
    return next((part for part in parts if part.name != STEP), None)


def _percents(times: Sequence[int]) -> list[int]:
    """Return the shares in percent of times above 0, rounded so that they add up to 100 (by the largest remainder).

    A share below 1 is rounded up only if there is no other way.
    """
    whole = sum(times)
    shares, rests = [100 * each // whole for each in times], [100 * each % whole for each in times]
    order = sorted(range(len(times)), key=lambda each: (not rests[each], not shares[each], -rests[each]))
    for each in order[: 100 - sum(shares)]:
        shares[each] += 1
    return shares


def sentences(run: RunTime) -> list[str]:
    """Return where most time of a run went, and how much of each step waits."""
    parts = parts_of(run.activities)
    overhead, steps = largest_overhead(parts), next((part for part in parts if part.name == STEP), None)
    went = "no time was recorded"
    if overhead is not None:
        named = _PHRASES.get(overhead.name) or f'the activity "{overhead.name}"'
        went = f"{overhead.share} of the time went into {named}"
    if run.goodput is None:
        went += "; goodput is undefined without steps"
    elif steps is not None and steps.percent >= _ENOUGH:
        more = "no overhead reaches 1 %"
        if overhead is not None and overhead.percent:
            more = f"the largest overhead is {named} ({overhead.share})"
        went = f"{steps.share} of the time went into steps; {more}"
    waiting = ", ".join(f"{percent(share)} waiting for {name}" for name, share in run.waiting.items())
    return [went, f"of each step: {waiting}"] if waiting else [went]


def shows_work(run: RunTime) -> bool:
    """Return True if a ledger has more than the start and the end of processes."""
    return any(part.name not in {"startup", "shutdown", DOWN} for part in parts_of(run.activities))


def print_last_line(run: RunTime) -> None:
    """Print the ledger of a run to stderr, unless there is nothing in it but the start and the end of processes."""
    with suppress(Exception):
        if shows_work(run):
            warn(printable(ledger_line(run)), "monitel ledger")


def ledger_line(run: RunTime) -> str:
    """Return the total, the largest parts and the sentences in one line."""
    total = duration(run.elapsed_ns) + (f" in {run.attempts} attempts" if run.attempts > 1 else "")
    shown = [part for part in parts_of(run.activities) if part.percent]
    names = [(cut(part.name, _LONGEST_NAME), part.share) for part in shown]
    if len(names) > _MOST:
        names[_MOST - 1 :] = [("the rest", f"{sum(part.percent for part in shown[_MOST - 1 :])} %")]
    return f"{total} ({', '.join(map(' '.join, names))}); {'; '.join(sentences(run))}"
