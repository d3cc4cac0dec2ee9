"""The runs on this machine: the ledgers and values that rank zero stores, and the deaths of their processes.

The values of a run that has not ended by itself are at most a minute old, its last step a second.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import find_boxes, process_of
from monitel.blackbox.folder import FolderError
from monitel.console.job import jobs_of
from monitel.console.ledger.run_folder import read_stored
from monitel.console.process import COMPLETED, State
from monitel.console.reader import ends_below, read_boxes
from monitel.console.text import moment
from monitel.console.values import RunValues, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel.console.ledger.run_folder import StoredRun
    from monitel.console.ledger.shares import RunTime
    from monitel.console.process import Process

RUNNING = "running"

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_KILLED = "killed"
_LISTED = 20
_OUTSIDE = {"startup", "init", "shutdown", "down"}  # activities outside of the training loop
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_ENDS = ("value", "mean", "")  # of the names of a last value, the best one first


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: The run id, or another name that distinguishes the run.
        outcome: How the run ended, or its state, in words.
        time: Its time.
        values: Its values.
    """

    name: str
    outcome: str
    time: RunTime
    values: RunValues

    @property
    def rate(self) -> float | None:
        """Steps per second of the training loop, evaluations and checkpoints between steps included."""
        looping_ns = sum(time_ns for name, time_ns in self.time.activities.items() if name not in _OUTSIDE)
        return self.values.whole.steps / looping_ns * 1e9 if self.values.whole.steps and looping_ns else None


def state_of(stored: StoredRun, now_ns: int) -> str:
    """Return how rank zero of a run ended, or its state, as far as its files show it."""
    if stored.time.ended:
        return (stored.values.status if stored.values is not None else "") or "ended"
    if stored.held is None:  # on another machine
        return RUNNING if abs(now_ns - stored.time.last_ns) < _ALIVE_NS else "killed or hung"
    if not stored.held:
        return _KILLED
    return RUNNING if now_ns - stored.time.last_ns < _ALIVE_NS else "hung"


def name_of(stored: StoredRun) -> str:
    """Return the name by which a run is chosen: its id, or for a run without an id its start in local time."""
    return stored.time.run or moment(stored.time.start_ns)


def is_given(run: str) -> bool:
    """Return True for a run id that a person has chosen: not empty, and not random digits."""
    return run != "" and _UUID.fullmatch(run.lower()) is None


def title_of(stored: StoredRun) -> str:
    """Return the name that a person has given: the run id, or the name of the service if the id is random digits."""
    if is_given(stored.time.run):
        return stored.time.run
    service = "" if stored.values is None else str(stored.values.attributes.get("service.name", ""))
    return "" if service.startswith("unknown_service") else service


def last_loss(values: RunValues | None) -> Value | None:
    """Return the last value, or the mean, of ``loss``, or of the first name that ends with it; None if there is none.

    A Stat comes before a logged number.
    """
    found = []
    for each in values.values if values is not None else ():
        stem, _, end = each.name.rpartition(".")
        name, end = (stem, end) if end in _ENDS else (each.name, "")
        if name.endswith("loss") and not each.total:
            found.append(((name != "loss", _ENDS.index(end)), each))
    return min(found, key=lambda each: each[0])[1] if found else None


class Runs:
    """The runs on this machine.

    Args:
        roots: Folders that hold spool folders.
        boxes: The folder that holds black boxes; None for those that jobs use by default.

    Attributes:
        stored: The runs with a ledger, in the order of their last heartbeats.
        problems: Descriptions of the files that cannot be read.
    """

    def __init__(self, roots: Sequence[Path], boxes: Path | None = None) -> None:
        self.problems: list[str] = []
        self._roots, self._boxes = roots, boxes
        self._ended: dict[Path | None, list[Process]] = {}  # by root; None for black boxes
        self.stored = self._stored(roots)

    def find(self, target: str) -> Run:
        """Return the run that a user names.

        Args:
            target: The id of a run, or its start; a folder with the ledger of one run; or the id of the process of rank
                zero, while it runs.

        Raises:
            FolderError: There is no such run, or there are several.
        """
        roots, named = self._roots, self.named(target)
        if len(named) > 1:
            advice = "give the process id of one that runs, or set training.run.id to give runs a name"
            raise FolderError(f"{len(named):,} runs without an id have started at {target}: {advice}")
        if not named and Path(target).is_dir():
            roots = [Path(target)]
            named = self._stored(roots)
            if len(named) > 1:
                raise _listed(f"{target!r} holds {len(named):,} runs; give one of them by its name:", named)
            if not named:
                raise FolderError(f"{target!r} holds no ledger of a run: give the spool_dir of a job")
        if not named and target.isdecimal():  # the job may have another spool_dir, which its box names
            boxes = [each for each in find_boxes(self._boxes).live if process_of(each) == int(target)]
            roots = [Path(each.spool).parent for each in read_boxes(boxes, self.problems, stacks=False) if each.spool]
            named = _of_process(self._stored(roots), target)
        if not named:
            raise self.unknown(f"run, folder or process {target!r}")
        return run_of(named[0], self._ends(roots))

    def outcome(self, stored: StoredRun, now_ns: int) -> str:
        """Return the outcome of a run, or its state."""
        return outcome_of(stored, self._ends(self._roots), now_ns)

    def unknown(self, what: str) -> FolderError:
        """Return an error about something that does not exist, with the names of the newest runs."""
        below = " and ".join(repr(str(root)) for root in self._roots)
        if self.stored:
            return _listed(f"there is no {what}; the runs below {below} are", self.stored)
        return FolderError(
            f"there is no ledger of a run below {below}: rank zero of a job with monitel_otlp.configure() writes one; "
            "if it has another spool_dir, give --spool-dir"
        )

    def named(self, name: str) -> list[StoredRun]:
        """Return the run with an id, or those without one that have started at a time, or that of a running process."""
        found = [each for each in self.stored if each.time.run == name != ""][-1:]
        found = found or [each for each in self.stored if name_of(each) == name]
        return found or _of_process(self.stored, name)

    def _stored(self, roots: Sequence[Path]) -> list[StoredRun]:
        found = []
        for root in roots:
            runs, problems = read_stored(root)
            found += runs
            self.problems += problems
        return sorted(found, key=lambda each: each.time.last_ns)

    def _ends(self, roots: Sequence[Path]) -> list[Process]:
        """Return the processes that have ended: of black boxes, and of records below some roots."""
        if None not in self._ended:
            self._ended[None] = read_boxes(find_boxes(self._boxes).dead, self.problems, stacks=False)
        for root in (each for each in roots if each not in self._ended):
            self._ended[root] = ends_below(root, self.problems, ["logs"])
        return [each for root in (None, *roots) for each in self._ended[root]]


def run_of(stored: StoredRun, processes: Sequence[Process]) -> Run:
    """Return a run."""
    values = stored.values or RunValues(stored.time.run, "").until(stored.last)
    return Run(name_of(stored), outcome_of(stored, processes, time.time_ns()), stored.time, values)


def outcome_of(stored: StoredRun, processes: Sequence[Process], now_ns: int) -> str:
    """Return the outcome of a run, which is that of all its ranks: the state of rank zero, and the first bad end.

    A rank that has not completed is named unless rank zero has not completed either. A death is named in any case.
    """
    state = state_of(stored, now_ns)
    jobs = jobs_of(each for each in processes if _has_ended_in(each, stored))
    killed = state.startswith(_KILLED)
    bad = [each for job in jobs for each in job.deaths if not each.replaced and (killed or each.state is State.DEAD)]
    if killed or state in {COMPLETED, RUNNING}:
        bad += [each for job in jobs for each in job.unfinished]
        bad = [each for each in bad if killed or each.rank is not None]
    if not bad:
        return state
    first = min(bad, key=lambda each: each.seen_ns)
    rank = "" if first.rank is None else f"rank {first.rank} "
    more = f", and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    end = f"{rank}{first.death or first.status or (_KILLED if killed else 'died')}{more}"
    state = "failed" if state == COMPLETED else state
    return end if killed else f"{state}; {end}"


def _of_process(runs: Iterable[StoredRun], pid: str) -> list[StoredRun]:
    return [each for each in runs if each.held and each.last.name.endswith(f"-{pid}")]


def _has_ended_in(process: Process, stored: StoredRun) -> bool:
    """Return True for a process that has ended in the last attempt of a run.

    It belongs to the run by the run id; without one it is that of the attempt. Process ids repeat: in containers every
    attempt may have the id 1.
    """
    run = stored.time.run
    belongs = process.job.run == run if run else stored.last.name.endswith(f"-{process.pid}") and not process.job.run
    in_time = process.seen_ns >= stored.attempt_start_ns and process.before_ns < stored.time.last_ns
    return belongs and in_time


def _listed(text: str, runs: Sequence[StoredRun]) -> FolderError:
    """Return an error with the names of the newest runs."""
    more = [f"and {len(runs) - _LISTED:,} older ones"] if len(runs) > _LISTED else []
    return FolderError("\n  ".join([text, *map(name_of, runs[: -_LISTED - 1 : -1]), *more]))
