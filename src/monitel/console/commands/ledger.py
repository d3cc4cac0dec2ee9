"""The ledger of a run as a table or as JSON. Nothing is locked or changed, so the run may go on writing it."""

from __future__ import annotations

import sys
import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from monitel.console.commands.output import show, warn
from monitel.console.runs import RUNNING, Runs, add_options, time_as_json
from monitel.console.shares import largest_overhead, parts_of, sentences
from monitel.console.text import Screen, columns_of, duration, moment, pad, to_json, wrapped
from monitel.runs.history import REPEATED, STEP
from monitel.training.training_time import DOWN

if TYPE_CHECKING:
    import argparse

    from monitel.console.runs import Run
    from monitel.runs.history import RunTime

_LABEL = 12  # columns of the labels above the table
_SHORT_NAME, _LONGEST_NAME = len("checkpoint.save"), 24
_LEAST_BAR, _SHORT_BAR, _LONGEST_BAR = 4, 8, 40
_GAP = "  "


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``ledger`` to a parser."""
    command = commands.add_parser("ledger", help="show where the time of a run went, over all its attempts")
    command.add_argument("name", nargs="?", metavar="RUN", help="the training.run.id of a run; default: the latest run")
    add_options(command)
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    """Print where the time of a run went; return 0 if every ledger could be read.

    Raises:
        FolderError: There is no run, or no run of this name.
    """
    found = Runs.given(arguments)
    runs = found.all if arguments.name is None else found.named(arguments.name)
    run = found.with_outcome(runs[-1]) if runs else None
    if not arguments.json:
        for problem in found.problems:
            warn(problem)
    if run is None:
        raise found.unknown("run" if arguments.name is None else f"run {arguments.name!r}")
    if arguments.json:
        show(to_json({"version": 1, "state": run.outcome, **_as_json(run.time), "problems": found.problems}))
    else:
        show("\n".join(table(run, Screen.of(sys.stdout), time.time_ns(), latest_of=len(runs))))
    return 1 if found.problems else 0


def _as_json(run: RunTime) -> dict[str, Any]:
    return {
        "run": run.run or None,
        **time_as_json(run),
        "activities": {name: time_ns / 1e9 for name, time_ns in run.activities.items()},
        "waiting": {name.replace(" ", "_"): share for name, share in run.waiting.items()},
    }


def table(run: Run, screen: Screen, now_ns: int, *, latest_of: int = 1) -> list[str]:
    """Return the lines that describe a run.

    Args:
        run: The run.
        screen: The stream that the lines are printed to.
        now_ns: The time, in nanoseconds since the Unix epoch.
        latest_of: The number of runs, if the run is the latest one.
    """
    time = run.time
    latest = f" (the latest of {latest_of:,} runs)" if latest_of > 1 else ""
    between = {name: time.activities.get(name, 0) for name in (DOWN, REPEATED)}
    breaks = " and ".join(f"{duration(time_ns)} {name}" for name, time_ns in between.items() if time_ns)
    rows = {
        "run": f"{screen.printable(time.run) or 'without an id'}{latest}",
        "started": moment(time.start_ns),
        "state": screen.printable(_state(run, now_ns)),
        "attempts": f"{time.attempts}{f', with {breaks}' if breaks else ''}",
        "goodput": "undefined, because no step was set" if time.goodput is None else f"{100 * time.goodput:.1f} %",
    }
    lines = []
    for name, value in rows.items():
        texts = wrapped(value, screen.width - _LABEL)
        lines += [f"{left:<{_LABEL}}{right}" for left, right in zip_longest([name], texts, fillvalue="")]
    below = [line for text in sentences(time, screen) for line in wrapped(text, screen.width)]
    return [*lines, "", *_activities(time, screen), "", *below]


def _state(run: Run, now_ns: int) -> str:
    last_ns = run.time.last_ns
    ago = f"{duration(now_ns - last_ns)} ago"
    if run.outcome.startswith(RUNNING):
        return f"{run.outcome}; its last heartbeat was {ago}"
    when = f"at {moment(last_ns)}, {ago if now_ns >= last_ns else 'ahead of the clock here'}"
    return f"{run.outcome} {when}" if run.time.status else f"{run.outcome}: its last heartbeat was {when}"


def _activities(run: RunTime, screen: Screen) -> list[str]:
    """Return the rows of the activities, and their sum."""
    parts = parts_of(run.activities)
    names = {part.name: screen.printable(part.name) for part in parts}
    longest = max(columns_of(name) for name in (*names.values(), "total"))
    times = max(len(duration(time_ns)) for time_ns in (run.elapsed_ns, *(part.time_ns for part in parts)))
    used = times + len("100 %") + 3 * len(_GAP)
    left = screen.width - used
    name_columns = min(longest, _LONGEST_NAME, max(left - _SHORT_BAR, min(_SHORT_NAME, left + len(_GAP)), len("total")))
    bars = min(screen.width - used - name_columns, _LONGEST_BAR)

    def row(name: str, bar: str, bar_columns: int, time_ns: int, share: str) -> str:
        space = "" if bars < _LEAST_BAR else f"{_GAP}{bar}{(bars - bar_columns) * ' '}"
        return f"{pad(name, name_columns)}{space}{_GAP}{duration(time_ns):>{times}}{_GAP}{share:>5}"

    rows = []
    overhead, whole = largest_overhead(parts), sum(part.time_ns for part in parts)
    for part in parts:
        cells = max((part.time_ns * max(bars, 0) + whole // 2) // whole, min(part.percent, 1))
        colour = "green" if part.name == STEP else "red" if part is overhead else ""
        bar = screen.paint(cells * screen.fills[0], colour)
        rows.append(row(names[part.name], bar, cells, part.time_ns, part.share))
    return [*rows, row("total", "", 0, run.elapsed_ns, "100 %")]
