"""``top``: the jobs on this machine as they run."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from monitel.blackbox.folder import check_platform
from monitel.console.as_json import look_as_json
from monitel.console.autopsy import NO_BOXES
from monitel.console.live import Live
from monitel.console.table import COLUMNS, View, summary, table_of
from monitel.text import CommandError, Screen, show, warn, wrapped
from monitel_run.arguments import target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.console.live import Look

_INTERVAL_S, _ONCE_S, _LEAST_S, _DAY_S = 2.0, 0.5, 0.1, 86_400.0
_COLOURS = {"green", "yellow", "red"}
_NOT_INSTALLED = (
    "the screen of monitel top needs textual: run `pip install 'monitel[top]'` (from a clone: "
    "`pip install -e '.[top]'`), or use --once, or --once --json for programs"
)
_NAMES = [each.name for each in COLUMNS]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "top",
        help="show the jobs on this machine as they run: the steps and waits of each rank",
        description="Show the jobs on this machine as they run, one row for each rank, from their black boxes: without "
        "a backend, and without changing anything in the jobs. Rates and shares are those of the last ten seconds.",
    )
    text = "process ids; black boxes, or folders that hold black boxes or spools; default: all black boxes of this user"
    command.add_argument("targets", nargs="*", type=target, metavar="DIR|PID", help=text)
    text = "the Stat or logged number in the column LOSS; default: loss, or the first name that ends with loss"
    command.add_argument("--show", metavar="NAME", help=text)
    command.add_argument("--once", action="store_true", help="print the table once, and end")
    text = "with --once: one JSON list with an object for each rank; else such a list on one line for each refresh"
    command.add_argument("--json", action="store_true", help=text)
    text = f"sort the rows of each job: {', '.join(_NAMES)} (default: %(default)s)"
    command.add_argument("--sort", choices=_NAMES, default="rank", metavar="COLUMN", help=text)
    text = "only rows with this text in a name, state, activity or event"
    command.add_argument("--filter", default="", metavar="TEXT", help=text)
    text = f"seconds between two refreshes ({_INTERVAL_S:g}); with --once, between its two readings ({_ONCE_S:g})"
    command.add_argument("--interval", type=_interval, metavar="SECONDS", help=text)
    command.set_defaults(run=_run, interrupted="interrupted")


def _interval(text: str) -> float:
    with suppress(ValueError):
        if _LEAST_S <= (seconds := float(text)) <= _DAY_S:
            return seconds
    raise argparse.ArgumentTypeError(f"expected seconds from {_LEAST_S:g} to {_DAY_S:g}, got {text!r}")


def _run(arguments: argparse.Namespace) -> int:
    check_platform()
    view = View("", arguments.filter)
    view.sort_by(arguments.sort)
    interval = arguments.interval or (_ONCE_S if arguments.once else _INTERVAL_S)
    if not (arguments.once or arguments.json):
        return _show_screen(arguments, view, interval)
    live = Live(arguments.targets, show=arguments.show)
    problems: set[str] = set()
    if arguments.once:
        live.look()
        Event().wait(interval)
    while True:
        look = live.look()
        for problem in look.problems:
            if problem not in problems:
                warn(problem)
        problems = {*look.problems}
        if arguments.json:
            chosen = [row.process for job in look.jobs for row in view.rows(job, Screen(), look.time_ns)]
            show(look_as_json(look, chosen, indent=2 if arguments.once else None), flush=True)
        else:
            show("\n".join(_lines(look, view, Screen.of(sys.stdout))))
        if arguments.once:
            return 0
        Event().wait(interval)


def _lines(look: Look, view: View, screen: Screen) -> Iterator[str]:
    """Yield the table as text."""
    yield from wrapped(summary(look) if look.jobs else NO_BOXES, screen.columns)
    titles, lines = table_of(look, view, screen, screen.columns)
    for line in lines:
        is_job = line.key.startswith("job ")
        yield from [""] * is_job
        text = "".join(screen.paint(part, style if style in _COLOURS else "") for part, style in line.parts)
        yield from (each.rstrip() for each in text.split("\n"))
        yield from ["".join(title for _, title in titles).rstrip()] * is_job
    if look.jobs and not lines:
        yield from ("", *wrapped(f"no row contains '{screen.printable(view.filter)}'", screen.columns))


def _show_screen(arguments: argparse.Namespace, view: View, interval: float) -> int:
    """Show the screen, and return the exit status.

    Raises:
        CommandError: The library of the screen is not installed.
    """
    try:
        from monitel.console.terminal import run_app  # late: it needs textual
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"textual", "rich"}:
            raise
        raise CommandError(_NOT_INSTALLED) from None
    return run_app(Live(arguments.targets, show=arguments.show), view, interval)
