"""``runs``: the runs on this machine, the newest first."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from monitel.console.commands.output import show, warn
from monitel.console.runs import Runs, add_options, time_as_json
from monitel.text import Screen, cut, duration, moment, number, rfc3339, table, to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monitel.console.runs import Run

_TITLES = "NAME", "STARTED", "STATE", "DURATION", "STEP", "LOSS", "ID"
_RIGHT = {"DURATION", "STEP", "LOSS"}  # columns that are aligned on the right
_MISSING = "-"
_LONGEST = 60  # columns of a name


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "runs",
        help="list the runs on this machine, with their state, last step and loss",
        description="List the runs on this machine, the one with the latest heartbeat first: name, start, state, "
        "duration over all attempts, last step and last loss. monitel ledger and monitel compare take the ID of a run, "
        "or without one its start. Nothing is changed.",
    )
    add_options(command)
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    found = Runs.given(arguments)
    runs = [found.with_outcome(each) for each in found.all[::-1]]
    if arguments.json:
        listed = [run_as_json(each) for each in runs]
        show(to_json({"version": 1, "time": rfc3339(time.time_ns()), "runs": listed, "problems": found.problems}))
    else:
        for problem in found.problems:
            warn(problem)
        show("\n".join(lines_of(runs, Screen.of(sys.stdout))) if runs else str(found.unknown("run")))
    return 1 if found.problems else 0


def run_as_json(run: Run) -> dict[str, Any]:
    """Return a run for programs. Unknown values are null."""
    loss = run.loss
    return {
        "run": run.time.run or None,
        "name": run.title or None,
        "state": run.outcome,
        **time_as_json(run.time),
        "last_step": run.time.last_step,
        "loss_name": None if loss is None else loss.name,
        "loss": None if loss is None else loss.value,
    }


def lines_of(runs: Sequence[Run], screen: Screen) -> list[str]:
    """Return the heading and a row for each run. The ids are left out if they are the names of all runs."""
    rows = [_TITLES, *(_cells(each, screen) for each in runs)]
    shown = len(_TITLES) if any(row[-1] for row in rows[1:]) else -1
    return [*table([row[:shown] for row in rows], screen.columns, _RIGHT)]


def _cells(run: Run, screen: Screen) -> Sequence[str]:
    step, loss, title = run.time.last_step, run.loss, run.title
    return (
        cut(screen.printable(title), _LONGEST) or _MISSING,
        moment(run.time.start_ns),
        screen.printable(run.outcome),
        duration(run.time.elapsed_ns),
        _MISSING if step is None else f"{step:,}",
        _MISSING if loss is None else number(loss.value),
        "" if title == run.time.run else cut(screen.printable(run.time.run), _LONGEST),
    )
