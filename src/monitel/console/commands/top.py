"""``top``: the jobs on this machine as they run."""

from __future__ import annotations

import sys
from threading import Event
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import check_platform
from monitel.blackbox.folder import FolderError
from monitel.console.arguments import at_least, target
from monitel.console.as_json import look_as_json
from monitel.console.commands.output import show, warn
from monitel.console.live import Live
from monitel.console.table.columns import COLUMNS, by_name, matches, sorted_ranks
from monitel.console.table.plain_text import table_lines, width_of
from monitel.console.text import Screen

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from monitel.console.live import Look
    from monitel.console.process import Process

_INTERVAL_S, _ONCE_S, _DAY_S = 1.0, 0.5, 86_400.0
_NOT_INSTALLED = (
    "the screen of monitel top needs textual: run `pip install 'monitel[top]'` (from a clone: "
    "`pip install -e '.[top]'`), or use --once, or --once --json for programs"
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "top",
        help="show the jobs on this machine as they run: the steps, lost time and waits of each rank",
        description="Show the jobs on this machine as they run, one row for each rank, from their black boxes: without "
        "a backend, and without changing anything in the jobs. Rates and shares are those of the last ten seconds.",
    )
    command.add_argument(
        "targets",
        nargs="*",
        type=target,
        metavar="DIR|PID",
        help="process ids; black boxes, folders that hold black boxes, or folders that hold spools. "
        "Default: all black boxes of this user on this machine",
    )
    command.add_argument(
        "--show",
        metavar="NAME",
        help="the Stat or logged number in the column LOSS; default: loss, or the first name that ends with loss",
    )
    command.add_argument("--once", action="store_true", help="print the table once, and end")
    command.add_argument(
        "--json",
        action="store_true",
        help="with --once: one JSON list with an object for each rank; without --once: such a list on one line for "
        "each refresh",
    )
    command.add_argument(
        "--sort",
        choices=[each.name for each in COLUMNS],
        default="rank",
        metavar="COLUMN",
        help=f"sort the rows of each job: {', '.join(each.name for each in COLUMNS)} (default: %(default)s)",
    )
    command.add_argument(
        "--filter", default="", metavar="TEXT", help="only rows with this text in a name, state, activity or event"
    )
    command.add_argument(
        "--interval",
        type=at_least(0.1, _DAY_S),
        metavar="SECONDS",
        help=f"time between two refreshes (default: {_INTERVAL_S:g}); with --once, the time between its two readings "
        f"(default: {_ONCE_S:g})",
    )
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    check_platform()
    if not (arguments.once or arguments.json):
        return _show(arguments)
    ranks = Live(arguments.targets, show=arguments.show)
    try:
        if arguments.once:
            _print_once(ranks, arguments)
        else:
            _print_lines(ranks, arguments)
    finally:
        ranks.close()
    return 0


def _print_once(ranks: Live, arguments: argparse.Namespace) -> None:
    ranks.look()
    Event().wait(arguments.interval or _ONCE_S)
    look = ranks.look()
    _print_problems(look.problems)
    if arguments.json:
        show(look_as_json(look, _chosen(look, arguments), indent=2))
        return
    screen = Screen.of(sys.stdout)
    order = {"sort": arguments.sort, "descending": by_name(arguments.sort).descending}
    for line in table_lines(look, screen, width_of(sys.stdout), **order, filter_text=arguments.filter):
        show(line)


def _print_lines(ranks: Live, arguments: argparse.Namespace) -> None:
    """Print a line for each look until the user interrupts, or nobody reads any more; print new problems to stderr."""
    printed: tuple[str, ...] = ()
    while True:
        look = ranks.look()
        _print_problems(each for each in look.problems if each not in printed)
        printed = look.problems
        show(look_as_json(look, _chosen(look, arguments)), flush=True)
        Event().wait(arguments.interval or _INTERVAL_S)


def _print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        warn(problem)


def _chosen(look: Look, arguments: argparse.Namespace) -> list[Process]:
    """Return the rows that the arguments ask for, job by job."""
    descending = by_name(arguments.sort).descending
    return [
        rank
        for job in look.jobs
        for rank in sorted_ranks(job.processes, arguments.sort, descending)
        if not arguments.filter or matches(rank, arguments.filter)
    ]


def _show(arguments: argparse.Namespace) -> int:
    """Show the screen, and return the exit status.

    Raises:
        FolderError: The library of the screen is not installed.
    """
    try:
        from monitel.console.terminal.app import run_app  # late: it needs textual
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"textual", "rich"}:
            raise
        raise FolderError(_NOT_INSTALLED) from None
    ranks = Live(arguments.targets, show=arguments.show)
    status: int = run_app(  # which closes them, in the thread that reads
        ranks, interval=arguments.interval or _INTERVAL_S, sort=arguments.sort, filter_text=arguments.filter
    )
    return status
