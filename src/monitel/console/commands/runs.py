"""``runs``: the runs on this machine, the newest first."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from monitel.console.commands.compare import add_spool_dir, find_runs
from monitel.console.commands.output import show, warn
from monitel.console.runs import last_loss, title_of
from monitel.console.text import Screen, duration, moment, number, rfc3339, table, to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monitel.console.ledger.run_folder import StoredRun
    from monitel.console.runs import Runs

_TITLES = "NAME", "STARTED", "STATE", "DURATION", "STEP", "LOSS", "ID"
_RIGHT = {"DURATION", "STEP", "LOSS"}  # columns that are aligned on the right
_MISSING = "-"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "runs",
        help="list the runs on this machine, with their state, last step and loss",
        description="List the runs on this machine, the one with the latest heartbeat first: name, start, state, "
        "duration over all attempts, last step and last loss. monitel ledger and monitel compare take the ID of a run, "
        "or without one its start. Nothing is changed.",
    )
    add_spool_dir(command)
    command.add_argument("--json", action="store_true", help="one JSON object, for programs")
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    found = find_runs(arguments)
    now_ns = time.time_ns()
    if arguments.json:
        listed = [run_as_json(each, found.outcome(each, now_ns)) for each in found.stored[::-1]]
        show(to_json({"version": 1, "time": rfc3339(now_ns), "runs": listed, "problems": found.problems}))
    else:
        lines = lines_of(found, Screen.of(sys.stdout), now_ns)
        for problem in found.problems:
            warn(problem)
        show("\n".join(lines) if found.stored else str(found.unknown("run")))
    return 1 if found.problems else 0


def run_as_json(run: StoredRun, outcome: str) -> dict[str, Any]:
    """Return a run for programs. Unknown values are null."""
    loss = last_loss(run.values)
    return {
        "run": run.time.run or None,
        "name": title_of(run) or None,
        "state": outcome,
        "started": rfc3339(run.time.start_ns),
        "last_seen": rfc3339(run.time.last_ns),
        "duration_seconds": run.time.elapsed_ns / 1e9,
        "attempts": run.time.attempts,
        "goodput": run.time.goodput,
        "last_step": run.last.last_step,
        "loss_name": None if loss is None else loss.name,
        "loss": None if loss is None else loss.value,
    }


def lines_of(found: Runs, screen: Screen, now_ns: int) -> list[str]:
    """Return the heading and a row for each run. The ids are left out if they are the names of all runs."""
    rows = [_TITLES, *(_cells(each, screen, found.outcome(each, now_ns)) for each in found.stored[::-1])]
    shown = len(_TITLES) if any(row[-1] for row in rows[1:]) else -1
    return [*table([row[:shown] for row in rows], screen.columns, _RIGHT)]


def _cells(run: StoredRun, screen: Screen, outcome: str) -> Sequence[str]:
    step, loss, title = run.last.last_step, last_loss(run.values), title_of(run)
    return (
        screen.printable(title) or _MISSING,
        moment(run.time.start_ns),
        screen.printable(outcome),
        duration(run.time.elapsed_ns),
        _MISSING if step is None else f"{step:,}",
        _MISSING if loss is None else number(loss.value),
        "" if title == run.time.run else screen.printable(run.time.run),
    )
