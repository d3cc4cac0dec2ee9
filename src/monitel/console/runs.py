"""The runs on this machine: their ledgers and stored values, and what the records of their processes add.

The values of a run are those that rank zero has stored, at most a minute old. While its process runs, and after a kill,
until its record is collected, the record adds what is newer: steps, logged numbers, counters, and the last windows.
The totals of Stats are only stored.
"""

from __future__ import annotations

import math
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.death import NAME as DIED
from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import find_boxes, find_spools, has_called_exec
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.forms import STEP_TIME
from monitel.blackbox.reading import read_head, read_record
from monitel.blackbox.record import NUMBERS
from monitel.console.ledger.run_folder import read_stored
from monitel.console.ledger.shares import REPEATED, RunTime
from monitel.console.reader import cause_of
from monitel.console.text import moment
from monitel.console.values import (
    Latest,
    Progress,
    RunValues,
    Value,
    counter_values,
    limited_text,
    scalars_of,
    steps_made,
    values_of,
)
from monitel.run_config import flat
from monitel.training_time import LOST as REPEATED_IN_METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitel.blackbox.reading import Record
    from monitel.console.ledger.run_folder import StoredRun

COMPLETED, RUNNING, LOST = "completed", "running", "killed or hung"

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_LISTED = 20
_LARGEST_SPOOL = 32 << 20  # bytes
_OUTSIDE = {"startup", "init", "shutdown", "down"}  # activities outside of the training loop
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_AGGREGATIONS = ("value", "mean", "")  # the ends of the names of a last value, the best one first


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: The run id, or another name that distinguishes the run.
        source: Where the numbers are from, in words.
        outcome: How the run ended, or its state, in words.
        time: Its time.
        values: Its values.
    """

    name: str
    source: str
    outcome: str
    time: RunTime
    values: RunValues

    @property
    def rate(self) -> float | None:
        """Steps per second: by the durations of the steps, otherwise by the time of the training loop."""
        whole = self.values.whole
        if whole.timed and whole.seconds > 0:
            return whole.timed / whole.seconds
        looping_ns = sum(time_ns for name, time_ns in self.time.activities.items() if name not in _OUTSIDE)
        return whole.steps / looping_ns * 1e9 if whole.steps and looping_ns else None


class _Process(NamedTuple):
    """A process of a run that has a record on this machine; empty texts where nothing is known."""

    record: Record
    alive: bool
    death: str
    seen_ns: int

    @property
    def rank(self) -> int:
        found = str(self.record.attributes.get("training.rank", ""))
        return int(found) if found.isdecimal() else 0


def state_of(stored: StoredRun, now_ns: int) -> str:
    """Return how a run ended, or its state, as far as its files show it."""
    if stored.time.ended:
        return (stored.values.status if stored.values is not None else "") or "ended"
    return RUNNING if abs(now_ns - stored.time.last_ns) < _ALIVE_NS else LOST


def name_of(stored: StoredRun) -> str:
    """Return the name by which a run is chosen: its id, or for a run without an id its start in local time."""
    return stored.time.run or moment(stored.time.start_ns)


def title_of(stored: StoredRun) -> str:
    """Return the name that a person has given: the run id, or the name of the service where that is random digits."""
    run = stored.time.run
    if run and _UUID.fullmatch(run.lower()) is None:
        return run
    service = "" if stored.values is None else str(stored.values.attributes.get("service.name", ""))
    return "" if service.startswith("unknown_service") else service


def last_loss(values: RunValues | None) -> Value | None:
    """Return the last value, or the mean, of ``loss``, or of the first name that ends with it; None if there is none.

    A Stat comes before a logged number.
    """
    found = []
    for each in values.values if values is not None else ():
        stem, _, end = each.name.rpartition(".")
        name, end = (stem, end) if end in _AGGREGATIONS else (each.name, "")
        if name.endswith("loss") and not each.total:
            found.append(((name != "loss", _AGGREGATIONS.index(end)), each))
    return min(found, key=lambda each: each[0])[1] if found else None


class Runs:
    """The runs on this machine.

    Args:
        roots: Folders that hold spool folders.
        boxes: The folder that holds black boxes; None for those that jobs use by default.

    Attributes:
        roots: See above.
        stored: The runs with a ledger, in the order of their last heartbeats.
        problems: Descriptions of the files that cannot be read.
    """

    def __init__(self, roots: Sequence[Path], boxes: Path | None = None) -> None:
        self.problems: list[str] = []
        self.roots, self._boxes = roots, boxes
        self.stored = self._stored(roots)

    def find(self, target: str) -> Run:
        """Return the run that a user names.

        Args:
            target: The id of a run, or its start; a folder with the ledger of one run; or the id of a process with a
                black box.

        Raises:
            FolderError: There is no such run, or there are several.
        """
        named = [each for each in self.stored if each.time.run == target][-1:]
        if named := named or [each for each in self.stored if name_of(each) == target]:
            if len(named) > 1:
                advice = "give the process id of one of them, or set training.run.id to give runs a name"
                raise FolderError(f"{len(named):,} runs without an id have started at {target}: {advice}")
            return self._with_ledger(named[0], self.roots)
        path = Path(target)
        if path.is_dir():
            return self._in_folder(path)
        if processes := [*self._processes(run=target)] or [*self._processes(pid=target)]:
            return self._of_process(processes)
        below = " and ".join(repr(str(root)) for root in self.roots)
        if not self.stored:
            advice = f"no ledger of a run below {below}: give --spool-dir"
            raise FolderError(f"there is no run, folder or process {target!r}, and {advice}")
        names = [name_of(each) for each in reversed(self.stored)]
        raise FolderError(_listed(f"there is no run, folder or process {target!r}; the runs below {below} are", names))

    def _stored(self, roots: Sequence[Path]) -> list[StoredRun]:
        found = []
        for root in roots:
            runs, problems = read_stored(root)
            found += runs
            self.problems += problems
        return sorted(found, key=lambda each: each.time.last_ns)

    def _in_folder(self, path: Path) -> Run:
        found = self._stored([path])
        if len(found) == 1:
            return self._with_ledger(found[0], [path])
        if found:
            names = [name_of(each) for each in reversed(found)]
            raise FolderError(_listed(f"{str(path)!r} holds {len(found):,} runs; give one of them by its name:", names))
        raise FolderError(
            f"{str(path)!r} holds no ledger of a run: give the spool_dir of a job, or the id of a process"
        )

    def _of_process(self, processes: Sequence[_Process]) -> Run:
        """Return the run of processes with black boxes."""
        own = min(processes, key=lambda each: (each.rank, -each.seen_ns))
        record = own.record
        roots = [*self.roots] if record.spool is None else [record.spool.parent]
        if found := [each for each in self._stored(roots) if _belongs(record, each)]:
            return self._with_ledger(found[-1], roots)
        activities = {
            str(attributes.get("training.activity", "")): round(seconds * 1e9)
            for name, _, _, attributes, seconds, *_ in record.counters
            if name == "training.time" and math.isfinite(seconds)
        }
        if repeated_ns := activities.pop(REPEATED_IN_METRICS, 0):
            activities[REPEATED] = repeated_ns
        elapsed_ns = sum(activities.values())
        run = str(record.attributes.get("training.run.id", ""))
        run_time = RunTime(run, activities, elapsed_ns, 1, record.created_ns, own.seen_ns, ended=False)
        values = _with_record(RunValues(run, ""), record)
        outcome = _outcome(RUNNING if own.alive else "", _deaths(processes, 0))
        return Run(run or f"process {record.owner.pid}", "the black box of its process", outcome, run_time, values)

    def _with_ledger(self, stored: StoredRun, roots: Sequence[Path]) -> Run:
        """Return a run with a ledger, and what the records of its processes add unless it has completed."""
        state = state_of(stored, time.time_ns())
        values = stored.values or RunValues(stored.time.run, "").until(stored.last)
        if state == COMPLETED:
            return Run(name_of(stored), "the ledger", state, stored.time, values)
        run, pid = stored.time.run, "" if stored.time.run else stored.last.name.rpartition("-")[2]
        processes = [*self._processes(run, pid), *self._dead(roots, run, pid)]
        own = next((each for each in processes if _is_last_attempt(each.record, stored) and not each.rank), None)
        source = "the ledger"
        if own is not None and not stored.time.ended:
            state = RUNNING if own.alive else LOST
            if own.record.snapshot is not None:
                values, source = _with_record(values, own.record), "the ledger and the black box of its process"
        deaths = _deaths(processes, stored.attempt_start_ns)
        return Run(name_of(stored), source, _outcome(state, deaths), stored.time, values)

    def _processes(self, run: str = "", pid: str = "") -> Iterator[_Process]:
        """Yield the processes with a run id, or with a process id, that have black boxes."""
        boxes = find_boxes(self._boxes)
        for path in boxes.readable:
            try:
                with closing(Folder.open(path, probe=False)) as folder:
                    head = read_head(folder)
                    if run == str(head.attributes.get("training.run.id", "")) if run else head.owner.pid == pid:
                        yield _process(read_record(folder), alive=path in boxes.live)
            except Exception as error:  # the box may be damaged in any way
                if path.exists():  # else it was removed meanwhile
                    self.problems.append(f"{str(path)!r} cannot be read: {error}")

    def _dead(self, roots: Sequence[Path], run: str, pid: str) -> Iterator[_Process]:
        """Yield the processes that have died, and whose records were moved to their spools."""
        for path in [folder for root in roots if root.is_dir() for folder in find_spools(root).folders]:
            try:
                if sum(each.stat().st_size for each in path.glob("logs-*")) > _LARGEST_SPOOL:
                    continue
                with closing(Folder.open(path, probe=False)) as folder:
                    record = read_record(folder, journals=["logs"])
            except Exception as error:  # the spool may be damaged in any way
                self.problems.append(f"{str(path)!r} cannot be read: {error}")
                continue
            if run == str(record.attributes.get("training.run.id", "")) if run else record.owner.pid == pid:
                for event in record.events:
                    if event.name == DIED:
                        yield _Process(record, False, cause_of(event.attributes) or "died", event.time_ns)


def _process(record: Record, *, alive: bool) -> _Process:
    if alive or has_called_exec(record.owner):
        return _Process(record, alive, "", max(record.time_ns, record.page.heartbeat_unix_ns or 0))
    event = death_of(record, Deaths()).event()
    return _Process(record, False, cause_of(event.attributes) or "died", event.time_ns)


def _belongs(record: Record, stored: StoredRun) -> bool:
    """Return True for a process of a run: by the run id, otherwise if the process is its last attempt."""
    run = str(record.attributes.get("training.run.id", ""))
    return run == stored.time.run if run or stored.time.run else _is_last_attempt(record, stored)


def _is_last_attempt(record: Record, stored: StoredRun) -> bool:
    """Return True for the process of the last attempt.

    Process ids repeat: in containers every attempt may have the id 1. So the process must have lived in that attempt.
    """
    return stored.last.name.endswith(f"-{record.owner.pid}") and (
        record.snapshot is None or record.time_ns >= stored.attempt_start_ns
    )


def _with_record(values: RunValues, record: Record) -> RunValues:
    """Return the values of a run with the newer ones of the process of its last attempt."""
    latest = _latest(record)
    known, found = values.progress, latest.progress
    if known.timed:
        found = found._replace(timed=known.timed, seconds=known.seconds)
    attributes = values.attributes or {name: limited_text(str(each)) for name, each in record.attributes.items()}
    return replace(values.with_latest(latest), progress=found, attributes=attributes)


def _latest(record: Record) -> Latest:
    """Return the values in a record, without the totals of Stats."""
    logged = [each for item in record.items.get("metrics", ()) if item.kind == NUMBERS for each in item.value]
    numbers = [*record.numbers, *((record.definition(number), *last) for number, *last in logged)]
    values = [
        Value(series.metric, scalars_of(series.attributes), series.unit, float(value), time_ns)
        for series, time_ns, value in numbers
    ]
    for series, window in ((each.series, each.window.snapshot) for each in record.windows):
        if window.count:
            values += values_of(series.metric, scalars_of(series.attributes), series.unit, series.suffixes, window)
    values.sort(key=lambda each: each.time_ns)
    totals = ((name, unit, labels, total) for name, unit, _, labels, total, *_ in record.counters)
    counters = counter_values(totals, record.time_ns)
    config = {
        name: limited_text(each)
        for event in record.events
        if event.name == "run.config" and isinstance(event.body, dict)
        for name, each in flat(event.body)
    }
    times = [(count, total) for series, count, total, *_ in record.reported if series.name == STEP_TIME]
    timed, seconds = map(sum, zip((0, 0.0), *times, strict=True))
    last = record.doing.get("step") if record.page.step is None else record.page.step
    progress = Progress(steps_made(counters, record.doing.get("first_step"), last, timed), last, timed, seconds)
    newest = {each.key: each for each in values}
    return Latest([*newest.values(), *counters], frozenset(each.key for each in counters), config, progress)


def _outcome(state: str, deaths: str) -> str:
    if not deaths or state == COMPLETED:
        return state or "unknown"
    return deaths if state in {"", LOST} else f"{state}; {deaths}"


def _deaths(processes: Sequence[_Process], since_ns: int) -> str:
    """Return the first death since a time, Unix ns, in words; empty if there is none."""
    dead = sorted(
        (each for each in processes if each.death and each.seen_ns >= since_ns), key=lambda each: each.seen_ns
    )
    if not dead:
        return ""
    first = dead[0]
    rank = f"rank {first.rank} " if "training.rank" in first.record.attributes else ""
    return f"{rank}{first.death}{f', and {len(dead) - 1:,} more' if len(dead) > 1 else ''}"


def _listed(text: str, names: Sequence[str]) -> str:
    more = [f"and {len(names) - _LISTED:,} older ones"] if len(names) > _LISTED else []
    return "\n  ".join([text, *names[:_LISTED], *more])
