"""The parts of the time of a run in percent, which add up to 100, the largest overhead, and the lines about it."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monitel.runs.history import REPEATED, STEP
from monitel.text import Screen, columns_of, cut, duration, percent, wrapped
from monitel.training.activities import ACTIVITIES
from monitel.training.training_time import DOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel.runs.history import RunTime

_ENOUGH = 95  # percent in steps, above which the overhead is not the news
_ORDER = {name: number for number, name in enumerate((*ACTIVITIES, DOWN, REPEATED))}  # of activities of the same length
_PARTS_IN_LINE, _PARTS_IN_BAR = 6, 4
_LONGEST_NAME = 40  # columns
_INDENT = _GAP = "  "

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

    name: str  # empty for the sum of several ones
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
    percents = apportion([time_ns for _, time_ns in found], 100)
    return [Part(*each, percent) for each, percent in zip(found, percents, strict=True)]


def largest_overhead(parts: Sequence[Part]) -> Part | None:
    """Return the largest part that is not ``step``; None if there is none."""
    return next((part for part in parts if part.name != STEP), None)


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Return integers in the ratio of the parts that add up to ``total`` (by the largest remainder).

    Each is the exact share, rounded up or down. A share below 1 is rounded up only if there is no other way. Without
    parts above 0 all are 0.
    """
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    shares, remainders = zip(*(divmod(part * total, whole) for part in parts), strict=True)
    order = sorted(range(len(parts)), key=lambda each: (not remainders[each], not shares[each], -remainders[each]))
    rounded_up = {*order[: total - sum(shares)]}
    return [share + (number in rounded_up) for number, share in enumerate(shares)]


def sentences(run: RunTime, screen: Screen) -> list[str]:
    """Return where most time of a run went, and how much of each step waits, in characters that the screen can show."""
    parts = parts_of(run.activities)
    overhead, steps = largest_overhead(parts), next((part for part in parts if part.name == STEP), None)
    went = "no time was recorded"
    if overhead is not None:
        named = _PHRASES.get(overhead.name) or f'the activity "{screen.printable(overhead.name)}"'
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
    with suppress(Exception):  # a signal handler may have interrupted a print; stderr may be closed
        if shows_work(run):
            text = last_line(run, Screen.of(sys.stderr))
            print(f"{text}\n", end="", file=sys.stderr)  # noqa: T201  one write: other ranks print too


def last_line(run: RunTime, screen: Screen) -> str:
    """Return the text that :func:`print_last_line` prints."""
    return "monitel ledger: " + f"\n{_INDENT}".join(ledger_lines(run, screen, screen.width - len(_INDENT)))


def ledger_lines(run: RunTime, screen: Screen, width: int) -> list[str]:
    """Return the total, the parts and the sentences: in a terminal lines of a width with a bar, else one long line."""
    total = duration(run.elapsed_ns) + (f" in {run.attempts} attempts" if run.attempts > 1 else "")
    parts = parts_of(run.activities)
    if not screen.terminal:
        shown = ", ".join(f"{_name(part, screen)} {part.share}" for part in _first(parts, _PARTS_IN_LINE))
        return [f"{total} ({shown}); {'; '.join(sentences(run, screen))}"]
    below = [line for text in sentences(run, screen) for line in wrapped(text, width)]
    return [total, *_bar(_first(parts, _PARTS_IN_BAR), screen, width), *below]


def _first(parts: Sequence[Part], limit: int) -> list[Part]:
    """Return the parts of at least 1 %; if they are more than ``limit``, the last one is the sum of the others."""
    shown = [part for part in parts if part.percent]
    if len(shown) <= limit:
        return shown
    _, times, percents = zip(*shown[limit - 1 :], strict=True)
    return [*shown[: limit - 1], Part("", sum(times), sum(percents))]


def _bar(parts: Sequence[Part], screen: Screen, width: int) -> list[str]:
    """Return a bar of this width with four parts at most, and the lines of its legend."""
    overheads = iter(("red", "yellow", "blue"))
    colours = ["green" if part.name == STEP else next(overheads, "") for part in parts]
    cells = apportion([part.percent for part in parts], width - len(parts))
    bar, legend, used = "", [""], 0
    for part, fill, colour, more in zip(parts, screen.fills, colours, cells, strict=False):
        bar += screen.paint((1 + more) * fill, colour)
        name = cut(_name(part, screen), width - len(f"# {part.share}") - 1)
        columns = columns_of(f"# {name} {part.share}")
        if used and used + len(_GAP) + columns > width:
            legend, used = [*legend, ""], 0
        gap = _GAP if used else ""
        legend[-1] += f"{gap}{screen.paint(fill, colour)} {name} {part.share}"
        used += len(gap) + columns
    return [bar, *legend]


def _name(part: Part, screen: Screen) -> str:
    return cut(screen.printable(part.name), _LONGEST_NAME) or "the rest"
