"""The runs on this machine: the ledgers that rank zero stores, the deaths of their processes, and ``monitel runs``.

The values of a run that has not ended by itself are at most a minute old, its last step a second.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from monitel.blackbox.discovery import find_boxes
from monitel.blackbox.folder import Folder, FolderError, check_platform
from monitel.blackbox.process import this_process
from monitel.blackbox.settings import given_folder, runs_dir, spool_root
from monitel.console.job import jobs_of
from monitel.console.reader import ends_below, read_boxes
from monitel.runs.ended import read_ends
from monitel.runs.folder import FILE, is_started, name_of, store_of_report, stored_runs
from monitel.runs.history import TOLERANCE_NS, Attempt, History, RunTime, decode
from monitel.runs.process import COMPLETED, EXEC, JobName, Process, State
from monitel.runs.values import RunValues, Value, loss_of
from monitel.text import (
    UNLIMITED,
    Screen,
    cut,
    duration,
    moment,
    number,
    printable,
    rfc3339,
    show,
    table,
    to_json,
    warn,
)
from monitel_run.arguments import target

RUNNING = "running"

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_KILLED = "killed"
_HANGING = {"silent", "stuck", "no-steps"}  # verdicts about processes whose heartbeats may go on
_LISTED = 20
_OUTSIDE = {"startup", "init", "shutdown", "down"}  # activities outside of the training loop
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_TITLES = "NAME", "STARTED", "STATE", "DURATION", "STEP", "LOSS", "ID"
_RIGHT = {"DURATION", "STEP", "LOSS"}  # columns that are aligned on the right
NOTHING = "-"  # a number that is not known
_LONGEST_NAME = 60  # columns of a name in a terminal


@dataclass(frozen=True)
class Run:
    """A run."""

    time: RunTime
    attempt: Attempt = field(default_factory=lambda: Attempt("", {}, 0))  # the last one
    values: RunValues = field(default_factory=RunValues)  # the last ones
    held: bool | None = None  # the last attempt holds the lock; None on another machine, or before the last boot
    store: Path = Path()  # its folder
    outcome: str = ""  # how it ended, or its state; empty before :meth:`Runs.with_outcome`
    page: str = ""  # the folder in which ``monitel run`` has written its report, if that is another one

    @property
    def name(self) -> str:
        """The name by which the run is chosen: that of its folder, its id, or without both its start in local time."""
        return self.folder or self.time.run or moment(self.time.start_ns)

    @property
    def title(self) -> str:
        """Its name in a list: its folder, an id that is not random digits, its service, or the folder of its report."""
        service = str(self.values.attributes.get("service.name", ""))
        own = self.time.run if is_given(self.time.run) else JobName(service=service).own_service
        return self.folder or own or self.page

    @property
    def folder(self) -> str:
        """The name of the folder that :func:`monitel.start` has made; empty for another run."""
        return self.store.name if is_started(self.store) else ""

    @property
    def rate(self) -> float | None:
        """Steps per second of the training loop, evaluations and checkpoints between steps included."""
        looping_ns = sum(time_ns for name, time_ns in self.time.activities.items() if name not in _OUTSIDE)
        return self.time.steps / looping_ns * 1e9 if self.time.steps and looping_ns else None

    @property
    def loss(self) -> Value | None:
        """The last loss of rank zero; None if there is none."""
        return loss_of(self.values.values)

    def state(self, now_ns: int) -> str:
        """Return how rank zero ended, or its state, as far as the files show it."""
        if self.time.status:
            return self.time.status
        if self.held is False:
            return _KILLED
        if now_ns - self.time.last_ns < _ALIVE_NS and (self.held or self.time.last_ns - now_ns < _ALIVE_NS):
            return RUNNING
        return "hung" if self.held else "killed or hung"  # None: on another machine

    @property
    def as_json(self) -> dict[str, Any]:
        """The fields of a run that all commands have in JSON."""
        time, loss = self.time, self.loss
        return {
            "run": time.run or None,
            "name": self.title or None,
            "state": self.outcome,
            "started": rfc3339(time.start_ns),
            "last_seen": rfc3339(time.last_ns),
            "duration_seconds": time.elapsed_ns / 1e9,
            "attempts": time.attempts,
            "goodput": time.goodput,
            "activities": {name: time_ns / 1e9 for name, time_ns in time.activities.items()},
            "waiting": {name.replace(" ", "_"): share for name, share in time.waiting.items()},
            "steps": time.steps or None,
            "last_step": time.last_step,
            "steps_per_second": self.rate,
            "loss_name": loss and loss.name,
            "loss": loss and loss.value,
        }


def is_given(run: str) -> bool:
    """Return True for a run id that a person has chosen: not empty, and not random digits."""
    return run != "" and _UUID.fullmatch(run.lower()) is None


def read_runs(root: Path, problems: list[str]) -> list[Run]:
    """Return all runs with a ledger below the folder of spools in the order of their last heartbeats."""
    runs = [_run_in(*found) for found in stored_runs(root, problems)]
    return sorted(runs, key=lambda run: run.time.last_ns)


def run_in(folder: Folder) -> Run | None:
    """Return the run that a folder has; None without a ledger in it. Raises StoredError if that cannot be used."""
    with suppress(FileNotFoundError):
        return _run_in(folder, decode(folder.read(FILE)))
    return None


def _run_in(folder: Folder, found: History) -> Run:
    boot, held = found.attempt.boot, None
    with suppress(OSError):  # the lock is a link
        held = folder.is_locked() if boot and boot == this_process().boot else None
    return Run(found.time, found.attempt, found.values, held, folder.path)


class Runs:
    """The runs below a folder of spools, and their processes, by black boxes and by the ends in spools."""

    def __init__(self, root: Path, boxes: Path | None = None, started: Path | None = None) -> None:
        self.problems: list[str] = []  # descriptions of the files that cannot be read
        self._root, self._boxes, self._started = root, boxes, started
        roots = {each.resolve(): each for each in (root, started) if each}  # they may be the same folder
        found = [each for folder in roots.values() for each in read_runs(folder, self.problems)]
        pages = {store_of_report(each): each.name for each in (started.glob("*") if started else ())}
        found = [replace(each, page=pages.get(each.store.resolve(), "")) for each in found]
        self.all = sorted(found, key=lambda run: run.time.last_ns)

    @classmethod
    def given(cls, arguments: argparse.Namespace) -> Runs:
        """Return the runs below the folder that is given as ``--spool-dir``; else those of ``monitel.start()``, too."""
        check_platform()
        if given := arguments.spool_dir:
            return cls(Path(given), given_folder("black_box_dir"), None)
        return cls(spool_root(), given_folder("black_box_dir"), runs_dir().resolve())

    def find(self, name: str) -> Run:
        """Return the run that a user names by its id, its start, its folder or that of its report, with its outcome.

        A name that ``monitel runs`` shows, or that was given to :func:`monitel.start`, is that of the latest such run.
        """
        path, below = (each.resolve() for each in (Path(name), (self._started or self._root) / name))
        stores = {path, below, *map(store_of_report, (path, below))}
        found = [each for each in self.all if each.time.run == name or each.store.resolve() in stores][-1:]
        found = found or [each for each in self.all if each.name == name]
        found = found or [each for each in self.all if name in {name_of(each.store), each.title}][-1:]
        if not found:
            raise self.unknown(f"run {name!r}")
        if len(found) > 1:
            advice = "set training.run.id to give runs a name"
            raise FolderError(f"{len(found):,} runs without an id have started at {name}: {advice}")
        return self.with_outcome(found[0])

    def with_outcome(self, run: Run) -> Run:
        """Return a run with its outcome, by the ends in its folder, in black boxes and in the spools."""
        ends, _ = read_ends(run.store)
        known = {each.owner for each in ends}  # their spools may not be delivered yet
        others = [each for each in self._processes if each.owner not in known]
        return replace(run, outcome=outcome_of(run, ends + others, time.time_ns()))

    @cached_property
    def _processes(self) -> list[Process]:
        boxes = find_boxes(self._boxes)
        found = read_boxes([*boxes.dead, *boxes.live], self.problems, stacks=False)
        return found + ends_below(self._root, self.problems, ["logs"])

    def unknown(self, what: str) -> FolderError:
        """Return an error about something that does not exist, after the files that cannot be read: they may be why."""
        return FolderError("\n".join([*self.problems, self.without(what)]))

    def without(self, what: str) -> str:
        """Return that something does not exist, and the names of the newest runs."""
        root = " or ".join(repr(str(each)) for each in filter(None, (self._started, self._root)))
        if not self.all:
            return (
                f"there is no ledger of a run below {root}: rank zero of a job with monitel.start() or "
                "monitel_otlp.configure() writes one; if it has another spool_dir, give --spool-dir"
            )
        more = [f"and {len(self.all) - _LISTED:,} older ones"] if len(self.all) > _LISTED else []
        names = [each.name for each in self.all[: -_LISTED - 1 : -1]]
        return "\n  ".join([f"there is no {what}; the runs below {root} are", *names, *more])


def with_loss(process: Process, run: Run | None) -> Process:
    """Return a process; rank zero with the last loss in the ledger of its run, if that is known."""
    loss = None if run is None or process.rank else run.loss
    return process if loss is None else process.but(value_name=loss.name, value=loss.value)


def outcome_of(run: Run, processes: Sequence[Process], now_ns: int) -> str:
    """Return the outcome of a run, which is that of all its ranks: the state of rank zero, and the first bad end.

    A rank that has not completed is named unless rank zero has not completed either. A death is named in any case. A
    run that goes on without steps has that verdict, too.
    """
    state = run.state(now_ns)
    jobs = jobs_of(each for each in processes if _took_part_in(each, run))
    killed = state.startswith(_KILLED)
    bad = [each for job in jobs for each in job.deaths if not each.is_replaced and (killed or each.state is State.DEAD)]
    if killed or state in {COMPLETED, RUNNING}:
        bad += [each for job in jobs for each in job.unfinished]
        bad = [each for each in bad if killed or each.rank is not None]
    if not bad:
        is_replaced = any(each.is_replaced and run.attempt.name.endswith(f"-{each.pid}") for each in processes)
        if state == RUNNING:
            kinds = [job.verdict.kind for job in jobs if not job.over and job.verdict.kind in _HANGING]
            return "; ".join([RUNNING, *(kind.replace("-", " ") for kind in kinds[:1])])
        return EXEC if killed and is_replaced else state
    first = min(bad, key=lambda each: each.seen_ns)
    rank = "" if first.rank is None else f"rank {first.rank} "
    more = f", and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    end = f"{rank}{first.death or first.status or (_KILLED if killed else 'died')}{more}"
    if state == COMPLETED:
        return f"failed on {rank.strip()}{more}" if first.status == "failed" else f"failed; {end}"
    return end if killed else f"{state}; {end}"


def _took_part_in(process: Process, run: Run) -> bool:
    """Return True for a process of the last attempt of a run. One that has ended did so in this attempt.

    It belongs to the run by the run id; without one it is that of the attempt. Process ids repeat: in containers every
    attempt may have the id 1.
    """
    name = run.time.run
    belongs = process.job.run == name if name else run.attempt.name.endswith(f"-{process.pid}") and not process.job.run
    began_ns = run.attempt.start_ns + TOLERANCE_NS  # the attempt may begin as soon as the one before has ended
    return belongs and process.seen_ns >= began_ns and process.before_ns < run.time.last_ns


# ---- the command


def add_options(command: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """Add the options ``--spool-dir`` and ``--json``, and the function of the command."""
    text = "the spool_dir of the jobs; default: MONITEL_SPOOL_DIR, or the folder that jobs use by default"
    command.add_argument("--spool-dir", type=target, metavar="DIR", help=text)
    command.add_argument("--json", action="store_true", help="one JSON object with everything, for programs")
    command.set_defaults(run=run, interrupted="interrupted")


def finish(arguments: argparse.Namespace, problems: Sequence[str], fields: dict[str, Any], lines: Sequence[str]) -> int:
    """Print an object or lines, and the problems; return the exit status."""
    if arguments.json:
        show(to_json({"version": 1, **fields, "problems": problems}))
    else:
        for problem in problems:
            warn(problem)
        show("\n".join(lines))
    return 1 if problems else 0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "runs",
        help="list the runs on this machine, with their state, last step and loss",
        description="List the runs on this machine, the one with the latest heartbeat first: name, start, state, "
        "duration over all attempts, last step and last loss. monitel ledger and monitel compare take the ID of a run, "
        "or without one its start. Nothing is changed.",
    )
    add_options(command, _run)


def _run(arguments: argparse.Namespace) -> int:
    found = Runs.given(arguments)
    runs = [found.with_outcome(each) for each in found.all[::-1]]
    columns = Screen.of(sys.stdout).columns
    longest = _LONGEST_NAME if columns < UNLIMITED else UNLIMITED
    rows = [_TITLES, *(_cells(each, longest) for each in runs)]
    shown = len(_TITLES) if any(row[-1] for row in rows[1:]) else -1  # without ids that are the names of all runs
    lines = [*table([row[:shown] for row in rows], columns, _RIGHT)] if runs else [found.without("run")]
    fields = {"time": rfc3339(time.time_ns()), "runs": [each.as_json for each in runs]}
    return finish(arguments, found.problems, fields, lines)


def _cells(run: Run, longest: int) -> Sequence[str]:
    step, loss, title = run.time.last_step, run.loss, run.title
    return (
        cut(printable(title), longest) or NOTHING,
        moment(run.time.start_ns),
        printable(run.outcome),
        duration(run.time.elapsed_ns),
        NOTHING if step is None else f"{step:,}",
        NOTHING if loss is None else number(loss.value),
        "" if title == run.time.run else cut(printable(run.time.run), longest),
    )
