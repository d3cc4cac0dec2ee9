"""The ledger of a run as a table or as JSON. Nothing is locked or changed, so the run may go on writing it."""

from __future__ import annotations

import sys
import time
from itertools import zip_longest
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import check_platform
from monitel.blackbox.folder import FolderError
from monitel.blackbox.settings import FOLDERS, default_roots
from monitel.console.arguments import folder
from monitel.console.commands.output import show, warn
from monitel.console.ledger.run_folder import read_stored
from monitel.console.ledger.shares import REPEATED, STEP, largest_overhead, parts_of, sentences
from monitel.console.text import Screen, columns_of, duration, moment, pad, to_json, wrapped
from monitel.training_time import DOWN
from monitel.variables import read_variables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from monitel.console.ledger.shares import RunTime

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_LISTED = 20
_LABEL = 12  # columns of the labels above the table
_SHORT_NAME, _LONGEST_NAME = len("checkpoint.save"), 24
_LEAST_BAR, _SHORT_BAR, _LONGEST_BAR = 4, 8, 40
_GAP = "  "


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``ledger`` to a parser."""
    command = commands.add_parser("ledger", help="show where the time of a run went, over all its attempts")
    command.add_argument("name", nargs="?", metavar="RUN", help="the training.run.id of a run; default: the latest run")
    command.add_argument(
        "--spool-dir",
        type=folder,
        metavar="DIR",
        help="the spool_dir of the job; default: MONITEL_SPOOL_DIR, or the folders that jobs use by default",
    )
    command.add_argument("--json", action="store_true", help="print one object")
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    """Print where the time of a run went; return 0 if every ledger could be read.

    Raises:
        FolderError: There is no run, or no run of this name.
    """
    check_platform()
    given = arguments.spool_dir or read_variables(FOLDERS, {"spool_dir": None}).get("spool_dir")
    roots = [given] if given else default_roots()
    runs: list[RunTime] = []
    problems: list[str] = []
    for root in roots:
        found, unreadable = read_stored(root)
        runs += (each.time for each in found)
        problems += unreadable
    runs.sort(key=lambda run: run.last_ns, reverse=True)
    now_ns = time.time_ns()
    if not arguments.json:
        for problem in problems:
            warn(problem)
    chosen = _choose(runs, arguments.name, roots, now_ns)
    if arguments.json:
        run = chosen[0]
        show(to_json({"version": 1, "state": _word(run, now_ns), **run.as_json, "problems": problems}))
    else:
        show("\n".join(table(chosen[0], Screen.of(sys.stdout), now_ns, latest_of=len(chosen))))
    return 1 if problems else 0


def _choose(runs: Sequence[RunTime], name: str | None, roots: Sequence[Path], now_ns: int) -> Sequence[RunTime]:
    """Return the runs with a name, the latest first; those without an id that started in one second have one name."""
    below = " and ".join(repr(str(root)) for root in roots)
    if not runs:
        raise FolderError(
            f"there is no ledger of a run below {below}: rank zero of a job with monitel_otlp.configure() writes one; "
            "if it has another spool_dir, give --spool-dir"
        )
    if name is None:
        return runs
    screen = Screen.of(sys.stderr)
    shown, labels = screen.printable(name), [screen.printable(run.run) or moment(run.start_ns) for run in runs]
    chosen = [run for run in runs if run.run == name]
    chosen = chosen or [run for run, label in zip(runs, labels, strict=True) if label == shown]
    if not chosen:
        listed = [
            f"{label}  ({_word(run, now_ns)}, {duration(run.elapsed_ns)} from {moment(run.start_ns)})"
            for run, label in zip(runs[:_LISTED], labels, strict=False)
        ]
        more = [f"and {len(runs) - _LISTED:,} older ones"] if len(runs) > _LISTED else []
        raise FolderError("\n  ".join([f"there is no run '{shown}' below {below}; the runs are", *listed, *more]))
    return chosen


def table(run: RunTime, screen: Screen, now_ns: int, *, latest_of: int = 1) -> list[str]:
    """Return the lines that describe a run.

    Args:
        run: The run.
        screen: The stream that the lines are printed to.
        now_ns: The time, in nanoseconds since the Unix epoch.
        latest_of: The number of runs, if the run is the latest one.
    """
    latest = f" (the latest of {latest_of:,} runs)" if latest_of > 1 else ""
    between = {name: run.activities.get(name, 0) for name in (DOWN, REPEATED)}
    breaks = " and ".join(f"{duration(time_ns)} {name}" for name, time_ns in between.items() if time_ns)
    rows = {
        "run": f"{screen.printable(run.run) or 'without an id'}{latest}",
        "started": moment(run.start_ns),
        "state": _state(run, now_ns),
        "attempts": f"{run.attempts}{f', with {breaks}' if breaks else ''}",
        "goodput": "undefined, because no step was set" if run.goodput is None else f"{100 * run.goodput:.1f} %",
    }
    lines = []
    for name, value in rows.items():
        texts = wrapped(value, screen.width - _LABEL)
        lines += [f"{left:<{_LABEL}}{right}" for left, right in zip_longest([name], texts, fillvalue="")]
    below = [line for text in sentences(run, screen) for line in wrapped(text, screen.width)]
    return [*lines, "", *_activities(run, screen), "", *below]


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


def _state(run: RunTime, now_ns: int) -> str:
    age_ns, word = now_ns - run.last_ns, _word(run, now_ns)
    when = f"at {moment(run.last_ns)}, {f'{duration(age_ns)} ago' if age_ns >= 0 else 'ahead of the clock here'}"
    if word == "running":
        return f"{word}; its last heartbeat was {duration(age_ns)} ago"
    return f"{word} {when}" if run.ended else f"{word}: its last heartbeat was {when}"


def _word(run: RunTime, now_ns: int) -> str:
    if run.ended:
        return "ended"
    return "running" if abs(now_ns - run.last_ns) < _ALIVE_NS else "killed or hung"
