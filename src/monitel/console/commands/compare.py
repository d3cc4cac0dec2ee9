"""``compare``: the numbers of several runs, side by side."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from monitel.blackbox.folder import FolderError
from monitel.console.commands.output import CommandError, show, warn
from monitel.console.compare import comparison_as_json, comparison_lines
from monitel.console.runs import Runs, add_spool_dir
from monitel.console.text import Screen, to_json

if TYPE_CHECKING:
    import argparse

_MOST = 16  # runs


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "compare",
        help="show the numbers of several runs side by side",
        description="Show outcome, time, steps, goodput, the last values and the configuration that differs of several "
        "runs, each in a column, with differences from the first one in percent. Nothing is changed.",
    )
    command.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a training.run.id, or the start of a run without one, as monitel runs lists them; the spool_dir of one "
        "run; or the id of the process of rank zero, while it runs. 2 to 16 runs",
    )
    add_spool_dir(command)
    command.add_argument("--all", action="store_true", help="all values")
    command.add_argument("--json", action="store_true", help="one JSON object with everything, for programs")
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    if len(arguments.runs) < 2:  # noqa: PLR2004  one has nothing to be compared with
        raise CommandError(
            "expected at least two runs to compare, got one; monitel ledger RUN shows the time of one run"
        )
    if len(arguments.runs) > _MOST:
        raise CommandError(f"expected at most {_MOST} runs to compare, got {len(arguments.runs)}")
    if not all(arguments.runs):
        raise CommandError("expected the names of runs, got an empty one")
    known = Runs.given(arguments)
    try:
        runs = [known.find(each) for each in arguments.runs]
    except FolderError as error:
        raise FolderError("\n".join([*dict.fromkeys(known.problems), str(error)])) from error  # which may be why
    problems = [*dict.fromkeys(known.problems)]
    if arguments.json:
        show(to_json(comparison_as_json(runs, problems, time.time_ns())))
        return 0
    for problem in problems:
        warn(problem)
    show("\n".join(comparison_lines(runs, Screen.of(sys.stdout), complete=arguments.all)))
    return 0
