"""The processes of this machine, looked at again and again, for ``monitel top``. Nothing is locked or written."""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import is_running, process_of
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.process import this_process
from monitel.blackbox.reading import read_record
from monitel.blackbox.record import ENDED, PAGE
from monitel.blackbox.recovery import is_alive
from monitel.console.job import jobs_of, replaced
from monitel.console.period import RATE_NS, History, StepDistribution, StepRate, over_a_period
from monitel.console.reader import boxes_of, deaths_beside, ends_below, read_processes, reason
from monitel.console.usage import UsageMeter
from monitel.process.context_page import PAGE_BYTES, read_page
from monitel.runs import process as model
from monitel.runs.ended import read_ends
from monitel.runs.process import Process, State, life_of
from monitel.training.training_time import DOWN
from monitel_run.folder import is_run_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel.blackbox.reading import Record
    from monitel.console.job import Job

_MOST_GONE = 1000  # processes that have ended, and are still shown
_ATTEMPTS = 5  # looks in which the end of a process is searched
_OVERDUE = 10  # steps
_END = (
    *("state", "death", "status", "exception", "seen_ns", "observed", "step", "step_age_ns", "activity"),
    *("activity_age_ns", "stage", "waits", "stacks"),
)


@dataclass(frozen=True)
class Look:
    """All jobs at one moment.

    Attributes:
        time_ns: Unix ns.
        jobs: The jobs, in the order of their names.
        problems: Descriptions of boxes and folders that cannot be read. They are not printable as they are.
    """

    time_ns: int
    jobs: tuple[Job, ...]
    problems: tuple[str, ...] = ()

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes of all jobs."""
        return tuple(each for job in self.jobs for each in job.processes)


class Live:
    """All processes with a black box, looked at again and again.

    A process that has died stays until another one takes its place. Use it in one thread.

    Args:
        targets: Process ids, boxes, folders of boxes, and folders of spools, as for ``monitel autopsy``; none for all
            boxes of this user on this machine.
        show: The Stat or logged number that rows show; None for ``loss``, or the first name that ends with it.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """

    def __init__(self, targets: Sequence[str] = (), *, show: str | None = None) -> None:
        self._show = show
        self._targets: Sequence[str | None] = [*dict.fromkeys(targets)] or [None]
        self._watched: dict[Path, _Watched] = {}
        self._meter = UsageMeter()
        without_box = [target for target in targets if not boxes_of(target, [])]
        found = (each for target in without_box for each in read_processes(target, [], stacks=False))
        self._collected = [*{(each.box.resolve(), each.pid, each.seen_ns): each for each in found}.values()]
        self._is_first = True

    def look(self) -> Look:
        """Read all boxes. Never raises for the content of boxes and folders."""
        problems, ends = list[str](), dict[str, list[Process]]()  # ends by the folder of their run
        present = self._found(problems)
        for path in present:
            if path not in self._watched or self._watched[path].gone:  # a search has missed it
                self._watched[path] = _Watched(path, self._show)
        rows = []
        for path, watched in [*self._watched.items()]:
            row = watched.look(ends, present=path in present)
            if row is not None:
                rows.append(row)
            elif path not in present:  # it was removed before it was read
                del self._watched[path]
        if self._is_first and self._targets == [None]:
            self._collected += deaths_beside(rows)
        self._is_first = False
        shown = self._meter.read(self._without_replaced([*rows, *self._collected]))
        histories = {path: watched.history for path, watched in self._watched.items()}
        jobs = [replace(job, processes=over_a_period(job.processes, histories)) for job in jobs_of(shown)]
        return Look(time.time_ns(), tuple(jobs), tuple(dict.fromkeys(problems)))

    def _without_replaced(self, rows: list[Process]) -> list[Process]:
        """Return rows without those whose place another process has taken; forget the vanished boxes among these."""
        left_out = {each.box for each in replaced(rows)}
        gone = {path for path, watched in self._watched.items() if watched.gone}
        ended = sorted((each.seen_ns, each.box) for each in rows if each.box in gone - left_out)
        left_out.update(box for _, box in ended[:-_MOST_GONE])
        for path in gone & left_out:
            del self._watched[path]
        return [each for each in rows if each.box not in left_out]

    def _found(self, problems: list[str]) -> dict[Path, None]:
        """Return the boxes of all targets."""
        found: list[Path] = []
        for target in self._targets:
            try:
                found += boxes_of(target, problems)
            except FolderError:
                pass  # the folder was removed since the start
            except OSError as error:
                problems.append(f"boxes cannot be searched: {reason(error)}")
        unique = {path.parent.resolve() / path.name: path for path in reversed(found)}
        return dict.fromkeys(reversed(unique.values()))


class _Watched:
    """A process whose box is read at each look until it has ended, and the numbers that need several looks.

    Attributes:
        gone: The box has vanished.
        history: The totals of the process.
    """

    def __init__(self, path: Path, show: str | None) -> None:
        self.gone = False
        self.history = History()
        self._path, self._show = path, show
        self._steps, self._times, self._numbers = StepRate(), StepDistribution(), _Numbers()
        self._viewer = this_process()
        self._page: mmap | None = None  # it outlives the box
        self._record: Record | None = None
        self._life = Process()
        self._end: Process | None = None  # None while it runs
        self._searched = 0
        self._row: Process | None = None  # None until the box was read

    def look(self, ends: dict[str, list[Process]], *, present: bool) -> Process | None:
        """Return the process as it is now. If its box cannot be read, it is as before, with the reason.

        Args:
            ends: The processes that ``monitel run`` keeps, by the folder of the run; those that are missing are read.
            present: The box exists.

        Returns:
            None if the box was removed before it was read.
        """
        problem = ""
        try:
            if present and self._end is None:
                self._read()
            elif not present and self._record is not None:
                self._depart(self._record, ends)
            if self._record is not None:
                self._row = self._made_row(self._record)
        except FileNotFoundError:
            pass  # it was removed; the next look does not find it
        except Exception as error:  # the content may be damaged in any way
            problem = reason(error)
        if problem and self._path.exists():
            row = self._row or Process(box=self._path, pid=process_of(self._path) or None)
            return replace(row, state=State.ALIVE if _runs(self._path) else State.DEAD, problem=problem)
        return self._row

    def _read(self) -> None:
        """Read the box.

        Raises:
            RecordError: It is damaged, or of a newer version.
            FolderError: It is a link, or belongs to another user.
            OSError: It cannot be read, or was removed.
        """
        with closing(Folder.open(self._path, probe=False)) as folder:
            if folder.has(ENDED):
                return  # the next search does not find it
            record = read_record(folder, journals=())
            if self._page is None:
                with suppress(FileNotFoundError):  # a box that is being made has none yet
                    self._page = _mapped(folder)
            page = record.page
            self._times.see(page.step_times, time.monotonic_ns())
            if page.step is not None and page.step_ns is not None:
                self._steps.note(page.step, page.step_ns)
            self._numbers.see(record)
            self._record, self._life = record, life_of(record).but(record=None)
            self.history.add(self._life)
            if not is_running(folder, record.owner, page, self._viewer):
                record = read_record(folder)
                self._end = model.dead(life_of(record), record, death_of(record, Deaths()))

    def _depart(self, record: Record, ends: dict[str, list[Process]]) -> None:
        """Search for the end of the process, whose box has vanished."""
        if not self.gone and self._page is not None:
            record.page = read_page(self._page[:])
        self.gone = True
        if self._searched >= _ATTEMPTS:
            return
        self._searched += 1
        end = self._known_end(record, ends)
        if end is not None:
            self._searched = _ATTEMPTS
        self._end = end or self._end or replace(model.now(self._life, record), state=State.ENDED)

    def _known_end(self, record: Record, ends: dict[str, list[Process]]) -> Process | None:
        """Return the end of the process, which was collected or has removed its box; None if it is not certain.

        ``monitel run`` keeps each end while it runs. The telemetry of a dead process is in a spool until a backend has
        it, and so is the status of a process that has ended by itself. Without either, a process that was not seen dead
        has ended by itself.
        """
        if record.run and is_run_folder(record.run):
            if record.run not in ends:
                ends[record.run] = read_ends(Path(record.run))[0]
            if found := next((each for each in ends[record.run] if each.owner == record.owner), None):
                return found
        if self._end is not None and self._end.death:
            return self._end
        spool = record.spool
        places = [self._path] if spool is None or not spool.is_absolute() else [self._path, spool]
        left = [end for place in places for end in ends_below(place, [])]
        if died := next((end for end in left if end.has_died), None):
            return died
        return left[-1] if left and self._end is None else None

    def _made_row(self, record: Record) -> Process:
        life, end, recent = self._life, self._end, self.history.recent
        row: dict[str, Any] = {
            "step_p50": self._times.median,
            "step_p99": self._times.p99,
            "data": _share(recent, "data"),
            "waiting": _waiting(recent),
        }
        row["value_name"], row["value"] = self._numbers.value(self._show)
        if end is None:
            found = model.now(life, record, **row)
            return found.but(rate=self._rate(found, time.monotonic_ns()))
        row |= {name: getattr(end, name) for name in _END}
        made = max(life.made, end.made)
        return life.but(**row, made=made, time_ns=time.time_ns(), stepped=life.stepped or end.made > 0)

    def _rate(self, process: Process, monotonic_ns: int) -> float | None:
        """Return the rate of the steps that were observed; before the first one that of the life of the process.

        A step that is overdue lowers the latter as it lowers the former: the ten seconds end now.
        """
        rate, mean = self._steps.rate(monotonic_ns), process.mean_rate
        if rate is not None or mean is None:
            return rate
        age_ns = process.step_age_ns or 0
        overdue = age_ns * mean > _OVERDUE * 1e9
        return mean * max(RATE_NS - age_ns, 0) / RATE_NS if overdue else mean


class _Numbers:
    """The last samples of open windows, and the last logged numbers, of which a row shows one."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[int, float]] = {}  # by the name of a Stat, with the number of the series
        self._logged: dict[str, float] = {}

    def see(self, record: Record) -> None:
        """Take over logged numbers, of one name the latest; and windows, of several series with one name the first."""
        self._logged = {each.name: value for each, _, value in sorted(record.numbers, key=lambda each: each[1])}
        for each in record.windows:  # in the order of their ends
            name = each.series.name
            if each.number <= self._samples.get(name, (each.number,))[0]:
                self._samples[name] = each.number, each.window.snapshot.last

    def value(self, show: str | None) -> tuple[str, float | None]:
        """Return a name with its last value.

        A Stat comes before a logged number of the same name, and an exact name before one that ends with it. While no
        window of the Stat is open, the value is its last known one.

        Args:
            show: The name; None for ``loss``, or the first name that ends with it.
        """
        samples = {name: value for name, (_, value) in sorted(self._samples.items(), key=lambda each: each[1][0])}
        values = {**samples, **{name: value for name, value in self._logged.items() if name not in samples}}
        wanted = "loss" if show is None else show
        if wanted in values or show is not None:
            return wanted, values.get(wanted)
        name = next((name for name in values if name.endswith(wanted)), "")
        return name, values.get(name)


def _mapped(folder: Folder) -> mmap:
    descriptor = folder.open_file(PAGE, os.O_RDONLY)
    try:
        return mmap(descriptor, PAGE_BYTES, access=ACCESS_READ)
    finally:
        os.close(descriptor)


def _elapsed_ns(activities: Mapping[str, int]) -> int:
    return sum(activities.values()) - activities.get(DOWN, 0)


def _share(process: Process, activity: str) -> float | None:
    """Return the share of an activity in the time of a process."""
    elapsed_ns = _elapsed_ns(process.activities)
    return process.activities.get(activity, 0) / elapsed_ns if elapsed_ns > 0 else None


def _waiting(process: Process) -> float | None:
    """Return the share of waits for other ranks: those that have ended, or those that are stuck, if they are longer."""
    stuck = _share(process, "stuck")
    sync = [total.sum for key, total in process.stages.items() if key.stage == "sync" and not key.device]
    if stuck is None or not (sync or stuck):
        return None
    return min(max(sum(sync) * 1e9 / _elapsed_ns(process.activities), stuck), 1.0)


def _runs(path: Path) -> bool:
    with suppress(FolderError, OSError), closing(Folder.open(path, probe=False)) as folder:
        return is_alive(folder)
    return False
