"""``top``: the jobs on this machine as they run, as lines for the screen and for ``--once``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple, TypeAlias

from monitel.blackbox.folder import check_platform
from monitel.console.as_json import look_as_json
from monitel.console.autopsy import NO_BOXES, counts, state_in_words
from monitel.console.job import Job
from monitel.console.live import Live, Look
from monitel.runs.process import Process, State
from monitel.text import (
    CommandError,
    Screen,
    bytes_in_words,
    columns_of,
    counted,
    duration,
    number,
    pad,
    per_second,
    percent,
    printable,
    show,
    warn,
    wrapped,
)
from monitel_run.arguments import target

Cell: TypeAlias = tuple[Any, str] | None  # the value that rows are sorted by, and its text; None if it is unknown

_INTERVAL_S, _ONCE_S, _LEAST_S, _DAY_S = 2.0, 0.5, 0.1, 86_400.0
_NOT_INSTALLED = (
    "the screen of monitel top needs textual: run `pip install 'monitel[top]'` (from a clone: "
    "`pip install -e '.[top]'`), or use --once, or --once --json for programs"
)
_LONG_NS = 10**9  # shorter stages and activities are usual in a step
_STATES = {State.ALIVE: "green", State.SILENT: "yellow", State.DEAD: "red"}
_VERDICTS = {"healthy": "green", **dict.fromkeys(("dead", "failed", "silent", "stuck", "no-steps", "diverged"), "red")}
_VERDICTS |= dict.fromkeys(("starting", "unknown"), "")  # the others are warnings


class Column(NamedTuple):
    name: str  # in arguments
    title: str
    width: int  # columns of the terminal that it takes at least
    importance: int  # a narrow terminal leaves out the columns with the smallest numbers first
    cell: Callable[[Process, int], Cell]  # of a process at the time of the look, Unix ns; its text is not escaped
    number: bool = True  # the cells are aligned on the right, and never cut
    descending: bool = True  # the largest values are of the most interest
    optional: bool = False  # it is left out if the value is unknown in all rows


class Row(NamedTuple):
    process: Process
    cells: Mapping[str, Cell]

    def text(self, column: Column) -> str:
        return (self.cells[column.name] or ("", "-"))[1]


class Line(NamedTuple):
    """Lines of the table that belong together: of a job, or of a process."""

    parts: Sequence[tuple[str, str]]  # texts, perhaps with line breaks, and their styles: bold, dim, a colour, or none
    process: Process  # of a job the one that its verdict is about
    key: str  # its black box, or the number of the job


@dataclass
class View:
    sort: str = "rank"  # the name of the column by which the rows of each job are sorted
    filter: str = ""  # text that rows must contain, in capitals or not
    descending: bool = False

    def sort_by(self, name: str) -> None:
        """Sort by a column in its usual order, or in the other one if the rows are sorted by it already."""
        usual = next(each.descending for each in COLUMNS if each.name == name)
        self.sort, self.descending = name, not self.descending if name == self.sort else usual

    def rows(self, job: Job, now_ns: int) -> list[Row]:
        """Return the rows of a job. Unknown values come last, and equal rows keep their order."""
        rows = []
        for process in job.processes:
            if not self.filter or _matches(process, self.filter):
                cells = ((each.name, each.cell(process, now_ns)) for each in COLUMNS)
                shown = {name: cell and (cell[0], printable(cell[1])) for name, cell in cells}
                rows.append(Row(process, shown))
        known = [(cell[0], row) for row in rows if (cell := row.cells[self.sort])]
        known.sort(key=lambda pair: pair[0], reverse=self.descending)
        return [*(row for _, row in known), *(row for row in rows if not row.cells[self.sort])]


def _matches(process: Process, text: str) -> bool:
    texts = (
        *(*process.job, process.host, process.state.value, process.death, process.activity, process.problem),
        "" if process.pid is None else str(process.pid),
        "" if process.rank is None else f"rank {process.rank}",
        *(wait.key for wait in process.waits),
        "" if process.event is None else process.event.name,
    )
    return any(text.casefold() in each.casefold() for each in texts)


def fitting(rows: Sequence[Row], width: int) -> dict[Column, int]:
    """Return the columns of the table that fit into a width, and the width of each."""
    present = [each for each in COLUMNS if not each.optional or any(row.cells[each.name] for row in rows)]
    wanted = {each: max([each.width, *(columns_of(row.text(each)) for row in rows)]) for each in present}
    shown = {column: wanted[column] if column.number else column.width for column in wanted}
    least = sorted(shown, key=lambda column: column.importance)
    while len(shown) > 1 and sum(shown.values()) + len(shown) - 1 > width:
        del shown[least.pop(0)]
    for column in reversed(least):
        shown[column] += max(min(wanted[column] - shown[column], width - sum(shown.values()) - len(shown) + 1), 0)
    return shown


def _cells(columns: Mapping[Column, int], text: Callable[[Column], str]) -> Iterator[tuple[Column, str]]:
    for column, width in columns.items():
        shown = text(column)
        yield column, (" " * (width - columns_of(shown)) + shown if column.number else pad(shown, width)) + " "


def table_of(look: Look, view: View, width: int) -> tuple[list[tuple[Column, str]], list[Line]]:
    """Return the titles of the columns, and the lines of each job and of its processes, in the width of a terminal."""
    jobs = [(job, view.rows(job, look.time_ns)) for job in look.jobs]
    columns = fitting([row for _, rows in jobs for row in rows], width)
    lines = []
    for number_of, (job, rows) in enumerate(jobs):
        if rows:
            about = next((row for row in rows if row.process.rank == job.verdict.rank), rows[0]).process
            verdict = wrapped(printable(job.verdict.text), width)
            names = "\n".join(wrapped(printable(_heading(job)), width))
            colour = _VERDICTS.get(job.verdict.kind, "yellow")
            lines.append(Line([(names, "bold"), ("\n" + "\n".join(verdict), colour)], about, f"job {number_of}"))
        for row in rows:
            over = row.process.state in {State.DEAD, State.ENDED}
            styles = {"state": "yellow" if row.process.problem else _STATES.get(row.process.state, "dim")}
            parts = [(text, styles.get(each.name, "dim" * over)) for each, text in _cells(columns, row.text)]
            remark = wrapped(printable(_remark(row.process, look.time_ns)), width - 2)
            parts += [(f"\n  {line}", "yellow" if row.process.problem else "red") for line in remark]
            lines.append(Line(parts, row.process, str(row.process.box)))
    return [*_cells(columns, lambda column: column.title)], lines


def summary(look: Look) -> str:
    return f"{counted(len(look.jobs), 'job')}, {counts(look.processes)}"


def _heading(job: Job) -> str:
    """Return the names of a job, and the number of its ranks that run here."""
    names, processes, size = job.name, job.processes, job.world_size
    ranks = len({each.rank for each in processes} - {None})
    hosts = sorted({each.host for each in processes} - {""})
    parts = (
        "/".join(filter(None, (names.namespace, names.own_service))) or "job without a name",
        f"run {names.run}" if names.run else "",
        f"attempt {job.attempt}" if job.attempt else "",
        f"{ranks} of {size} ranks" if size else counted(len(processes), "process", "es"),
        f"on {', '.join(hosts)}" if hosts else "",
    )
    return ", ".join(filter(None, parts))


def _remark(process: Process, now_ns: int) -> str:
    """Return how a process has ended or failed, or why its box cannot be read; otherwise an empty text."""
    if process.problem:
        return f"cannot be read: {process.problem}"
    if process.state is not State.DEAD:
        return process.failure
    return state_in_words(process, now_ns).removeprefix("dead: ")


def _of(name: str, text: Callable[[Any], str] = str) -> Callable[[Process, int], Cell]:

    def cell(process: Process, *_: object) -> Cell:
        value = getattr(process, name)
        if value is None:
            return None
        return math.inf if value != value else value, text(value)  # noqa: PLR0124  NaN is the news: it comes first

    return cell


def _seconds(seconds: float) -> str:
    return duration(1e9 * seconds)


def _step(step: int) -> str:
    return str(step) if step < 10**9 else f"{step:.3e}"  # it may be a number of tokens


def _state(process: Process, *_: object) -> Cell:
    return process.state.value, "?" if process.problem else process.state.value


def _waiting(process: Process, _: int) -> Cell:
    if process.waits:
        wait, *others = process.waits
        more = f" and {len(others)} more" if others else ""
        return wait.age_ns, f"{duration(wait.age_ns)} {wait.key}{more}"
    stage = process.stage
    if stage is None or stage.age_ns < _LONG_NS:
        return None
    where = "other ranks" if stage.waits else f"in {stage.name}"
    return stage.age_ns, f"{duration(stage.age_ns)} {where}"


def _activity(process: Process, _: int) -> Cell:
    age_ns = process.activity_age_ns or 0
    age = f" {duration(age_ns)}" if age_ns >= _LONG_NS else ""
    return (process.activity, process.activity + age) if process.activity else None


def _event(process: Process, now_ns: int) -> Cell:
    if process.event is None:
        return None
    age = duration(max(now_ns - process.event.time_ns, 0))
    return process.event.time_ns, f"{age} {process.event.name}"


#: All columns, from left to right.
COLUMNS = (
    Column("rank", "RANK", 4, 18, _of("rank"), descending=False),
    Column("pid", "PID", 7, 13, _of("pid"), descending=False),
    Column("state", "STATE", 6, 17, _state, number=False),
    Column("step", "STEP", 6, 16, _of("step", _step)),
    Column("rate", "STEP/S", 6, 15, _of("rate", per_second)),
    Column("p50", "P50", 7, 10, _of("step_p50", _seconds)),
    Column("p99", "P99", 7, 3, _of("step_p99", _seconds)),
    Column("data", "DATA", 5, 12, _of("data", percent)),
    Column("wait", "WAIT", 5, 11, _of("waiting", percent)),
    Column("value", "LOSS", 7, 9, _of("value", number)),
    Column("goodput", "GOODPUT", 7, 8, _of("goodput", percent)),
    Column("cpu", "CPU", 5, 7, _of("cpu", percent)),
    Column("memory", "MEM", 8, 5, _of("memory", bytes_in_words)),
    Column("gpu", "GPU", 5, 6, _of("gpu", percent), optional=True),
    Column("gpu-memory", "GPU MEM", 8, 4, _of("gpu_memory", bytes_in_words), optional=True),
    Column("waiting", "WAITING", 22, 14, _waiting, number=False),
    Column("activity", "ACTIVITY", 12, 0, _activity, number=False, descending=False),
    Column("event", "LAST EVENT", 18, 1, _event, number=False),
)
_NAMES = [each.name for each in COLUMNS]


# ---- the command


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
            chosen = [row.process for job in look.jobs for row in view.rows(job, look.time_ns)]
            show(look_as_json(look, chosen, indent=2 if arguments.once else None), flush=True)
        else:
            show("\n".join(_lines(look, view, Screen.of(sys.stdout))))
        if arguments.once:
            return 0
        Event().wait(interval)


def _lines(look: Look, view: View, screen: Screen) -> Iterator[str]:
    yield from wrapped(summary(look) if look.jobs else NO_BOXES, screen.columns)
    titles, lines = table_of(look, view, screen.columns)
    for line in lines:
        is_job = line.key.startswith("job ")
        yield from [""] * is_job
        yield from (each.rstrip() for each in "".join(part for part, _ in line.parts).split("\n"))
        yield from ["".join(title for _, title in titles).rstrip()] * is_job
    if look.jobs and not lines:
        yield from ("", *wrapped(f"no row contains '{printable(view.filter)}'", screen.columns))


def _show_screen(arguments: argparse.Namespace, view: View, interval: float) -> int:
    try:
        from monitel.console.terminal import run_app  # late: it needs textual
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"textual", "rich"}:
            raise
        raise CommandError(_NOT_INSTALLED) from None
    return run_app(Live(arguments.targets, show=arguments.show), view, interval)
