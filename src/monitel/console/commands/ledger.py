"""The ledger of a run as a table or as JSON. Nothing is locked or changed, so the run may go on writing it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from monitel.console.runs import RUNNING, Runs, add_options, time_as_json
from monitel.runs.history import REPEATED, STEP
from monitel.runs.shares import largest_overhead, parts_of, sentences
from monitel.text import Screen, columns_of, duration, labelled, moment, pad, show, to_json, warn, wrapped
from monitel.training.counters import DOWN

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
    found = Runs.given(arguments)
    runs = found.all if arguments.name is None else found.named(arguments.name)
    run = found.with_outcome(runs[-1]) if runs else None
    if not arguments.json:
        for problem in found.problems:
            warn(problem)
    if run is None:
        raise found.unknown("run" if arguments.name is None else f"run {arguments.name!r}")
    if arguments.json:
        fields = {
            "version": 1,
            "state": run.outcome,
            "run": run.time.run or None,
            **time_as_json(run.time),
            "activities": {name: time_ns / 1e9 for name, time_ns in run.time.activities.items()},
            "waiting": {name.replace(" ", "_"): share for name, share in run.time.waiting.items()},
        }
        show(to_json({**fields, "problems": found.problems}))
    else:
        show("\n".join(table(run, Screen.of(sys.stdout), time.time_ns(), latest_of=len(runs))))
    return 1 if found.problems else 0


def table(run: Run, screen: Screen, now_ns: int, *, latest_of: int = 1) -> list[str]:
    """Return the lines that describe a run, which may be the latest one of several."""
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
    above = [line for name, value in rows.items() for line in labelled(name, value, screen.width, _LABEL)]
    below = [line for text in sentences(time) for line in wrapped(screen.printable(text), screen.width)]
    return [*above, "", *_activities(time, screen), "", *below]


def _state(run: Run, now_ns: int) -> str:
    last_ns = run.time.last_ns
    ago = f"{duration(now_ns - last_ns)} ago"
    if run.outcome.startswith(RUNNING):
        return f"{run.outcome}; its last heartbeat was {ago}"
    when = f"at {moment(last_ns)}, {ago if now_ns >= last_ns else 'ahead of the clock here'}"
    return f"{run.outcome} {when}" if run.time.status else f"{run.outcome}: its last heartbeat was {when}"


def _activities(run: RunTime, screen: Screen) -> list[str]:
    """Return the rows of the activities, each with a bar, and their sum."""
    parts = parts_of(run.activities)
    names = [*(screen.printable(part.name) for part in parts), "total"]
    times = max(len(duration(time_ns)) for time_ns in (run.elapsed_ns, *(part.time_ns for part in parts)))
    used = times + len("100 %") + 3 * len(_GAP)
    left = screen.width - used
    least = max(left - _SHORT_BAR, min(_SHORT_NAME, left + len(_GAP)), len("total"))
    name_columns = min(max(map(columns_of, names)), _LONGEST_NAME, least)
    bars = min(left - name_columns, _LONGEST_BAR)

    def row(name: str, bar: str, cells: int, time_ns: int, share: str) -> str:
        space = "" if bars < _LEAST_BAR else f"{_GAP}{bar}{(bars - cells) * ' '}"
        return f"{pad(name, name_columns)}{space}{_GAP}{duration(time_ns):>{times}}{_GAP}{share:>5}"

    rows = []
    overhead, whole = largest_overhead(parts), sum(part.time_ns for part in parts)
    for name, part in zip(names, parts, strict=False):
        cells = max((part.time_ns * max(bars, 0) + whole // 2) // whole, min(part.percent, 1))
        colour = "green" if part.name == STEP else "red" if part is overhead else ""
        rows.append(row(name, screen.paint(cells * screen.block, colour), cells, part.time_ns, part.share))
    return [*rows, row("total", "", 0, run.elapsed_ns, "100 %")]
