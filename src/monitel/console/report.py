"""The report of a run, one page of HTML, and the command ``monitel report``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import filterfalse, pairwise
from pathlib import Path
from secrets import token_hex

from monitel.blackbox.discovery import find_boxes
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.settings import given_folder, runs_dir
from monitel.console.job import Job, jobs_of, replaced
from monitel.console.page import page
from monitel.console.reader import read_boxes
from monitel.console.runs import Run, Runs, add_options, finish, is_given, outcome_of, run_in, with_loss
from monitel.runs.curves import Curve, read_curves
from monitel.runs.ended import ONLY, count_ends, read_ends, write_end
from monitel.runs.folder import CURVES, is_started, make_started, name_of
from monitel.runs.folder import FILE as LEDGER
from monitel.runs.process import Process
from monitel.runs.stored import StoredError
from monitel.text import near
from monitel.variables import BOOLEAN, read_variables
from monitel_run.arguments import target

FILE = "report.html"


def is_wanted() -> bool:
    """Return False if MONITEL_REPORT is false."""
    return bool(read_variables({"report": BOOLEAN}, {"report": True}).get("report", True))


def report_of(store: Path, *, title: str) -> str:
    """Return the report of the run that a folder has.

    Its processes are those whose ends are in the folder, and those that have boxes on this machine.
    """
    problems: list[str] = []
    run, curves = _stored(store, problems)
    processes = [with_loss(each, run) for each in _processes(store, problems)]
    old, start_ns = {*map(id, replaced(processes))}, 0
    if run is not None:
        run = replace(run, outcome=outcome_of(run, processes, time.time_ns()))
        start_ns = run.attempt.start_ns

    def is_earlier(process: Process) -> bool:
        return id(process) in old or (process.seen_ns < start_ns and not process.runs)

    jobs = [*jobs_of(filter(is_earlier, processes)), *jobs_of(filterfalse(is_earlier, processes))]
    return page(run, jobs, curves, title=title, now_ns=time.time_ns(), problems=problems)


def write_report(store: Path, place: Path, *, title: str) -> Path:
    """Write the report of a run into a file, and return its path.

    Several ranks may do so at once: each writes it again until no other one has stored its end meanwhile.
    """
    known = -1
    while known != (found := count_ends(store)):
        known, text = found, report_of(store, title=title)
        with closing(Folder.open(place.parent, check=False)) as folder:
            new = f".{place.name}.{token_hex(4)}"
            folder.write_new(new, text.encode("utf-8", "replace"))
            folder.rename(new, place.name)
    return place


def write_job(attempts: Sequence[Job], command: Sequence[str]) -> Path:
    """Write the report of a job of ``monitel run`` at its end, and return its path.

    The ends of its processes are stored in the folder of the run, which may have those of ranks that another ``monitel
    run`` has started. The report lies there, too, if :func:`monitel.start` has begun the run; else in a new folder.
    """
    processes = [each for job in attempts for each in job.processes]
    stores = [Path(each.store) for each in processes if each.store and Path(each.store).is_dir()]
    known = (each for each in stores if (each / LEDGER).exists() or is_started(each))  # rank zero has the ledger
    names = attempts[-1].name
    title = next(filter(is_given, (names.run, names.own_service)), None) or script_of(command)
    if (store := next(known, None)) is None:
        store = make_started(runs_dir(), title)
    for each in processes:
        write_end(store, each, ONLY)
    folder = store if is_started(store) else make_started(runs_dir(), title, store=str(store))
    return write_report(store, folder / FILE, title=name_of(store) or title)


def script_of(command: Sequence[str]) -> str:
    """Return the name of the script or module of a command; else that of its program."""
    scripts = [Path(each).stem for each in command if each.endswith(".py")]
    modules = [module for option, module in pairwise(command) if option == "-m"]
    return [*modules[-1:], *scripts, Path(command[0]).name if command else "run"][0]


def _stored(store: Path, problems: list[str]) -> tuple[Run | None, list[Curve]]:
    """Return the run that a folder has, and its curves."""
    with closing(Folder.open(store, check=False)) as folder:
        run, curves = None, list[Curve]()
        try:
            run = run_in(folder)
            with suppress(FileNotFoundError):
                curves = read_curves(folder.read(CURVES))
        except (StoredError, OSError) as error:
            problems.append(f"a file of the run in {str(store)!r} {error}")
    return run, curves


def _processes(store: Path, problems: list[str]) -> list[Process]:
    ends, wrong = read_ends(store)
    ended = {each.owner for each in ends}
    boxes = find_boxes(given_folder("black_box_dir"))
    found = read_boxes([*boxes.dead, *boxes.live], problems, stacks=False)
    problems += wrong
    return [*ends, *(each for each in found if each.store == str(store.absolute()) and each.owner not in ended)]


# ---- the command


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "report",
        help="write a page about a run: verdict, curves, where the time went",
        description="Write one page of HTML about a run, which may still be running: verdict, curves, where the time "
        "went, stages of each rank, how it ended, and its configuration. The page needs no network.",
    )
    text = "the ID, the name or the start of a run, as in monitel runs, or its folder; default: the latest run"
    command.add_argument("name", nargs="?", type=target, metavar="RUN", help=text)
    text = "the file, or - for stdout; default: report.html in the folder of a run of monitel.start(), or else here"
    command.add_argument("--output", type=target, metavar="FILE", help=text)
    add_options(command, _run)


def _run(arguments: argparse.Namespace) -> int:
    known = Runs.given(arguments)
    if arguments.name is None and not known.all:
        raise known.unknown("run")
    run = known.with_outcome(known.all[-1]) if arguments.name is None else known.find(arguments.name)
    title = name_of(run.store) or run.title or run.name
    if arguments.output == "-":
        if arguments.json:
            raise FolderError("--json and --output - both write to stdout: give --output a file")
        return finish(arguments, known.problems, {}, [report_of(run.store, title=title).rstrip("\n")])
    place = Path(arguments.output or (run.store / FILE if is_started(run.store) else FILE)).absolute()
    if place.is_symlink() or (place.exists() and not place.is_file()):  # such as /dev/stdout: it would be replaced
        raise FolderError(f"{str(place)!r} is not a file")
    try:
        path = write_report(run.store, place, title=title)
    except OSError as error:
        raise FolderError(f"{str(place)!r} cannot be written: {error.strerror or error}") from None
    return finish(arguments, known.problems, {**run.as_json, "report": str(path)}, [near(path)])
