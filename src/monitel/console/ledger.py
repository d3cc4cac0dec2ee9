"""The ledger of a run as a table or as JSON. Nothing is locked or changed, so the run may go on writing it."""

from __future__ import annotations

import argparse
import sys
import time

from monitel.console.runs import RUNNING, Run, Runs, add_options, finish
from monitel.runs.history import REPEATED, RunTime
from monitel.runs.shares import parts_of, sentences
from monitel.text import Screen, cut, duration, labelled, moment, printable, table, wrapped
from monitel.training.counters import DOWN
from monitel_run.arguments import target

_LABEL = 12  # columns of the labels above the table
_LONGEST_NAME, _BAR = 24, 40  # columns of the name of an activity, and of a bar of the whole time


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``ledger`` to a parser."""
    command = commands.add_parser("ledger", help="show where the time of a run went, over all its attempts")
    text = "the ID, the name or the start of a run, as in monitel runs, or its folder; default: the latest run"
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
    lines = ledger_lines(run, Screen.of(sys.stdout), time.time_ns(), several)
    return finish(arguments, found.problems, run.as_json, lines)


def ledger_lines(run: Run, screen: Screen, now_ns: int, latest_of: int = 1) -> list[str]:
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
    return [*above, "", *table(_rows(time), screen.width, {"share", "time"}), "", *below]


def _state(run: Run, now_ns: int) -> str:
    last_ns = run.time.last_ns
    ago = f"{duration(now_ns - last_ns)} ago"
    if run.outcome.startswith(RUNNING):
        return f"{run.outcome}; its last heartbeat was {ago}"
    when = f"at {moment(last_ns)}, {ago if now_ns >= last_ns else 'ahead of the clock here'}"
    return f"{run.outcome} {when}" if run.time.status else f"{run.outcome}: its last heartbeat was {when}"


def _rows(run: RunTime) -> list[tuple[str, str, str, str]]:
    """Return the rows of the activities, each with its share, its time and a bar, and their sum."""
    rows, bar = [("activity", "share", "time", "")], "█" if "utf" in (sys.stdout.encoding or "utf").lower() else "#"
    for part in parts_of(run.activities):
        cells = max(round(part.time_ns * _BAR / run.elapsed_ns), min(part.percent, 1))
        rows.append((cut(printable(part.name), _LONGEST_NAME), part.share, duration(part.time_ns), cells * bar))
    return [*rows, ("total", "100 %", duration(run.elapsed_ns), "")]
