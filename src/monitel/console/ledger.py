"""The ledger of a run as a table or as JSON. Nothing is locked or changed, so the run may go on writing it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from monitel.console.runs import RUNNING, Run, Runs, add_options, report
from monitel.runs.history import REPEATED, STEP, RunTime
from monitel.runs.shares import largest_overhead, parts_of, sentences
from monitel.text import Screen, columns_of, duration, labelled, moment, pad, printable, wrapped
from monitel.training.counters import DOWN
from monitel_run.arguments import target

if TYPE_CHECKING:
    import argparse

_LABEL = 12  # columns of the labels above the table
_SHORT_NAME, _LONGEST_NAME = len("checkpoint.save"), 24
_SHORTEST_BAR, _BAR, _LONGEST_BAR = 4, 8, 40
_SHARE = len("100 %")
_GAP = "  "


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``ledger`` to a parser."""
    command = commands.add_parser("ledger", help="show where the time of a run went, over all its attempts")
    text = "the training.run.id of a run, or another name as for compare; default: the latest run"
    command.add_argument("name", nargs="?", type=target, metavar="RUN", help=text)
    add_options(command, _run)


def _run(arguments: argparse.Namespace) -> int:
    found = Runs.given(arguments)
    if arguments.name is not None:
        run, several = found.find(arguments.name), 1
    elif found.all:
        run, several = found.with_outcome(found.all[-1]), len(found.all)
    else:
        raise found.unknown("run")
    waiting = {name.replace(" ", "_"): share for name, share in run.time.waiting.items()}
    fields = {"state": run.outcome, "run": run.time.run or None, **run.time_as_json}
    fields |= {"activities": run.activities_as_json, "waiting": waiting}
    return report(arguments, found.problems, fields, table(run, Screen.of(sys.stdout), time.time_ns(), several))


def table(run: Run, screen: Screen, now_ns: int, latest_of: int = 1) -> list[str]:
    """Return the lines that describe a run, which may be the latest one of several."""
    time = run.time
    latest = f" (the latest of {latest_of:,} runs)" if latest_of > 1 else ""
    between = {name: time.activities.get(name, 0) for name in (DOWN, REPEATED)}
    breaks = " and ".join(f"{duration(time_ns)} {name}" for name, time_ns in between.items() if time_ns)
    rows = {
        "run": f"{printable(time.run) or 'without an id'}{latest}",
        "started": moment(time.start_ns),
        "state": printable(_state(run, now_ns)),
        "attempts": f"{time.attempts}{f', with {breaks}' if breaks else ''}",
        "goodput": "undefined, because no step was set" if time.goodput is None else f"{100 * time.goodput:.1f} %",
    }
    above = [line for name, value in rows.items() for line in labelled(name, value, screen.width, _LABEL)]
    below = [line for text in sentences(time) for line in wrapped(printable(text), screen.width)]
    return [*above, "", *_activities(time, screen), "", *below]


def _state(run: Run, now_ns: int) -> str:
    last_ns = run.time.last_ns
    ago = f"{duration(now_ns - last_ns)} ago"
    if run.outcome.startswith(RUNNING):
        return f"{run.outcome}; its last heartbeat was {ago}"
    when = f"at {moment(last_ns)}, {ago if now_ns >= last_ns else 'ahead of the clock here'}"
    return f"{run.outcome} {when}" if run.time.status else f"{run.outcome}: its last heartbeat was {when}"


def _activities(run: RunTime, screen: Screen) -> list[str]:
    """Return the rows of the activities, each with a bar and its time if there is space, and their sum."""
    parts = parts_of(run.activities)
    overhead, whole = largest_overhead(parts), sum(part.time_ns for part in parts)
    names = [*(printable(part.name) for part in parts), "total"]
    times = [*(duration(part.time_ns) for part in parts), duration(run.elapsed_ns)]
    time_columns = max(map(len, times))
    space = screen.width - time_columns - _SHARE - 2 * len(_GAP)  # for the name and the bar
    if space < len("total"):
        space, time_columns = screen.width - _SHARE - len(_GAP), 0
    name_columns = min(max(map(columns_of, names)), _LONGEST_NAME, max(space - len(_GAP) - _BAR, _SHORT_NAME))
    bar_columns = min(space - len(_GAP) - name_columns, _LONGEST_BAR)
    if bar_columns < _SHORTEST_BAR:
        name_columns, bar_columns = min(name_columns, space), 0

    def row(name: str, bar: str, cells: int, shown: str, share: str) -> str:
        columns = [pad(name, name_columns)]
        columns += [bar + (bar_columns - cells) * " "] if bar_columns else []
        columns += [shown.rjust(time_columns)] if time_columns else []
        return _GAP.join([*columns, share.rjust(_SHARE)])

    rows = []
    for name, shown, part in zip(names, times, parts, strict=False):
        cells = max((part.time_ns * bar_columns + whole // 2) // whole, min(part.percent, bar_columns, 1))
        colour = "green" if part.name == STEP else "red" if part is overhead else ""
        rows.append(row(name, screen.paint(cells * "█", colour), cells, shown, part.share))
    return [*rows, row("total", "", 0, times[-1], "100 %")]
