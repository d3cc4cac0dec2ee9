"""The ledger of a run as a table. Nothing is locked or changed, so it may be read while the run writes it."""

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
from monitel.console.ledger.reading import read_runs
from monitel.console.ledger.shares import largest_loss, parts_of, sentence
from monitel.console.text import Screen, columns_of, duration, moment, pad, wrapped
from monitel.training_time import DOWN, LOST
from monitel.variables import read_variables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from monitel.console.ledger.shares import Part, RunTime

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_ENDED, _RUNNING = "ended", "running"
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
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    check_platform()
    given = arguments.spool_dir or read_variables(FOLDERS, {"spool_dir": None}).get("spool_dir")
    return show_ledger(arguments.name, [given] if given else default_roots())


def show_ledger(name: str | None, roots: Sequence[Path]) -> int:
    """Print where the time of a run went.

    Args:
        name: The id of the run, or its start as the list of runs shows it; None for the run of the last heartbeat.
        roots: Folders that hold spool folders.

    Returns:
        The exit status: 0 if every ledger could be read.

    Raises:
        FolderError: There is no run, or no run of this name.
    """
    runs: list[RunTime] = []
    problems: list[str] = []
    for root in roots:
        found, unreadable = read_runs(root)
        runs += found
        problems += unreadable
    for problem in problems:
        warn(problem)
    runs.sort(key=lambda run: run.last_ns, reverse=True)
    screen, now_ns = Screen.of(sys.stdout), time.time_ns()
    chosen = _choose(runs, name, roots, now_ns)
    show("\n".join(table(chosen[0], screen, now_ns, latest_of=len(chosen))))
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
    shown = screen.printable(name)
    chosen = [run for run in runs if run.run == name] or [run for run in runs if label(run, screen) == shown]
    if not chosen:
        listed = [f"{label(run, screen)}  ({_summary(run, now_ns)})" for run in runs[:_LISTED]]
        more = [f"and {len(runs) - _LISTED:,} older ones"] if len(runs) > _LISTED else []
        raise FolderError("\n  ".join([f"there is no run '{shown}' below {below}; the runs are", *listed, *more]))
    return chosen


def label(run: RunTime, screen: Screen) -> str:
    """Return the name of a run: its id, or for a run without id its start in local time."""
    return screen.printable(run.run) or moment(run.start_ns)


def table(run: RunTime, screen: Screen, now_ns: int, *, latest_of: int = 1) -> list[str]:
    """Return the lines that describe a run.

    Args:
        run: The run.
        screen: The stream that the lines are printed to.
        now_ns: The time, in nanoseconds since the Unix epoch.
        latest_of: The number of runs, if the run is the latest one.
    """
    latest = f" (the latest of {latest_of:,} runs)" if latest_of > 1 else ""
    between = {name: run.activities.get(name, 0) for name in (DOWN, LOST)}
    breaks = " and ".join(f"{duration(time_ns)} {name}" for name, time_ns in between.items() if time_ns)
    goodput = "undefined, because no step was set" if run.goodput is None else f"{100 * run.goodput:.1f} %"
    rows = {
        "run": f"{screen.printable(run.run) or 'without an id'}{latest}",
        "started": moment(run.start_ns),
        "state": _state(run, now_ns),
        "attempts": f"{run.attempts}{f', with {breaks}' if breaks else ''}",
        "goodput": goodput,
    }
    lines = []
    for name, value in rows.items():
        texts = wrapped(value, screen.width - _LABEL)
        lines += [f"{left:<{_LABEL}}{right}" for left, right in zip_longest([name], texts, fillvalue="")]
    return [*lines, "", *_activities(run, screen), "", *wrapped(sentence(run, screen), screen.width)]


def _activities(run: RunTime, screen: Screen) -> list[str]:
    """Return the rows of the activities, and their sum."""
    parts = parts_of(run.activities)
    names = {part.name: screen.printable(part.name) for part in parts}
    longest = max((columns_of(name) for name in (*names.values(), "total")), default=0)
    times = max(len(duration(time_ns)) for time_ns in (run.elapsed_ns, *(part.time_ns for part in parts)))
    used = times + len("100 %") + 3 * len(_GAP)
    left = screen.width - used
    name_columns = min(longest, _LONGEST_NAME, max(left - _SHORT_BAR, min(_SHORT_NAME, left + len(_GAP)), len("total")))
    bars = min(screen.width - used - name_columns, _LONGEST_BAR)

    def row(name: str, bar: str, bar_columns: int, time_ns: int, share: str) -> str:
        space = "" if bars < _LEAST_BAR else f"{_GAP}{bar}{(bars - bar_columns) * ' '}"
        return f"{pad(name, name_columns)}{space}{_GAP}{duration(time_ns):>{times}}{_GAP}{share:>5}"

    rows = []
    loss = largest_loss(parts)
    whole = sum(part.time_ns for part in parts)
    for part in parts:
        cells = max((part.time_ns * max(bars, 0) + whole // 2) // whole, min(part.percent, 1))
        bar = screen.paint(cells * screen.fills[0], _colour(part, loss))
        rows.append(row(names[part.name], bar, cells, part.time_ns, part.share))
    return [*rows, row("total", "", 0, run.elapsed_ns, "100 %")]


def _colour(part: Part, loss: Part | None) -> str:
    if part.name == "step":
        return "green"
    return "red" if part is loss else ""


def _state(run: RunTime, now_ns: int) -> str:
    age_ns = now_ns - run.last_ns
    when = f"at {moment(run.last_ns)}, {f'{duration(age_ns)} ago' if age_ns >= 0 else 'ahead of the clock here'}"
    state = _word(run, now_ns)
    if state == _ENDED:
        return f"{state} {when}"
    if state == _RUNNING:
        return f"{state}; its last heartbeat was {duration(age_ns)} ago"
    return f"{state}: its last heartbeat was {when}"


def _summary(run: RunTime, now_ns: int) -> str:
    """Return the state of a run in a list of runs."""
    return f"{_word(run, now_ns)}, {duration(run.elapsed_ns)} from {moment(run.start_ns)}"


def _word(run: RunTime, now_ns: int) -> str:
    if run.ended:
        return _ENDED
    return _RUNNING if abs(now_ns - run.last_ns) < _ALIVE_NS else "killed or hung"
