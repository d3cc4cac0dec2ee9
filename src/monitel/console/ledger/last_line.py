"""The ledger at the end of a run: a bar in a terminal, otherwise one line."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.console.ledger.shares import apportion, first_parts, parts_of, sentence
from monitel.console.text import Screen, columns_of, cut, duration, wrapped
from monitel.training_time import DOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.console.ledger.shares import Part, RunTime

_START = "monitel ledger: "
_NOTHING = {"startup", "shutdown", DOWN}
_PARTS_IN_LINE, _PARTS_IN_BAR = 6, 4
_LOSS_COLOURS = ("red", "yellow", "blue")
_LONGEST_NAME = 40  # columns
_INDENT = _GAP = "  "


def print_last_line(read: Callable[[], RunTime | None]) -> None:
    """Print the ledger of a run to stderr, unless there is nothing in it but the start and the end of processes.

    Args:
        read: Returns the ledger; None in a process that has none.
    """
    with suppress(Exception):  # a signal handler may have interrupted a print; stderr may be closed
        run = read()
        if run is not None and shows_work(run):
            text = last_line(run, Screen.of(sys.stderr))
            print(f"{text}\n", end="", file=sys.stderr)  # noqa: T201  one write: other ranks print too


def shows_work(run: RunTime) -> bool:
    """Return True if a ledger has more than the start and the end of processes."""
    return any(part.name not in _NOTHING for part in parts_of(run.activities))


def last_line(run: RunTime, screen: Screen) -> str:
    """Return the text that :func:`print_last_line` prints."""
    first, *others = ledger_lines(run, screen, screen.width - len(_INDENT))
    return f"\n{_INDENT}".join([f"{_START}{first}", *others])


def ledger_lines(run: RunTime, screen: Screen, width: int) -> list[str]:
    """Return the total, the parts and the sentence: lines with a bar for a terminal, otherwise one long line.

    Args:
        run: The ledger.
        screen: The stream that the lines are printed to.
        width: Columns of a line in a terminal.
    """
    total = duration(run.elapsed_ns) + (f" in {run.attempts} attempts" if run.attempts > 1 else "")
    parts = parts_of(run.activities)
    if not screen.terminal:
        shown = ", ".join(f"{_name(part, screen)} {part.share}" for part in first_parts(parts, _PARTS_IN_LINE))
        return [f"{total} ({shown}); {sentence(run, screen)}"]
    bar = stacked_bar(first_parts(parts, _PARTS_IN_BAR), screen, width)
    return [total, *bar, *wrapped(sentence(run, screen), width)]


def stacked_bar(parts: Sequence[Part], screen: Screen, width: int) -> list[str]:
    """Return a bar of this width with four parts at most, and the lines of its legend."""
    cells = [1 + more for more in apportion([part.percent for part in parts], width - len(parts))]
    fills = dict(zip(parts, screen.fills, strict=False))
    losses = iter(_LOSS_COLOURS)
    colours = {part: "green" if part.name == "step" else next(losses, "") for part in parts}
    bar = "".join(screen.paint(each * fills[part], colours[part]) for part, each in zip(parts, cells, strict=True))
    lines, used = [""], 0
    for part in parts:
        name = cut(_name(part, screen), width - len(f"# {part.share}") - 1)
        needed = columns_of(f"# {name} {part.share}")
        if used and used + len(_GAP) + needed > width:
            lines.append("")
            used = 0
        gap = _GAP if used else ""
        lines[-1] += f"{gap}{screen.paint(fills[part], colours[part])} {name} {part.share}"
        used += len(gap) + needed
    return [bar, *lines]


def _name(part: Part, screen: Screen) -> str:
    return cut(screen.printable(part.name), _LONGEST_NAME) or "the rest"
