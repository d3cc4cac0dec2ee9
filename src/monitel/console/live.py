"""The processes of this machine, looked at again and again, for ``monitel top``. Nothing is locked or written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.blackbox.box import ENDED, PAGE
from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import is_running, process_of
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.forms import STAT, Definition
from monitel.blackbox.reading import Record, RecordError, names_of, read_head, read_record
from monitel.blackbox.recovery import is_alive, read_snapshot
from monitel.console import process as model
from monitel.console.ended import read_ends
from monitel.console.job import jobs_of, replaced
from monitel.console.period import RATE_NS, History, StepDistribution, StepRate, over_a_period, with_totals
from monitel.console.process import Process, State, life_of
from monitel.console.reader import boxes_of, deaths_of, ends_below, folders_of, nothing_known, reason
from monitel.context_page import PAGE_BYTES, read_page, read_step_times
from monitel.training_time import DOWN
from monitel_run.folder import is_run_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monitel.console.job import Job

_SEARCH_NS = 5 * 10**9  # between two searches for boxes where nothing seems to have changed
_TICK_NS = 50_000_000  # within which two changes may leave a folder with one time
_AT_ONCE = 16  # boxes that are read completely in one look; of more, each in its turn
_MOST_GONE = 1000  # processes that have ended, and are still shown
_ATTEMPTS = 5  # looks in which the end of a process is searched
_OVERDUE = 10  # steps
_MOST_NAMES = 10_000
_END = (
    *("state", "death", "status", "exception", "replaced", "seen_ns", "observed", "step", "step_age_ns", "activity"),
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

    Each look reads the step, the waits and the heartbeat of all processes. The rest is read of 16 processes in one
    look; of more, in turns. A process that has died stays until another one takes its place. Use it in one thread.

    Args:
        targets: Process ids, boxes, folders of boxes, and folders of spools, as for ``monitel autopsy``; none for all
            boxes of this user on this machine.
        show: The Stat or logged number that rows show; None for ``loss``, or the first name that ends with it.

    Attributes:
        show: As given. It may be changed between two looks.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """

    def __init__(self, targets: Sequence[str] = (), *, show: str | None = None) -> None:
        self.show = show
        self._targets: Sequence[str | None] = [*dict.fromkeys(targets)] or [None]
        self._watched: dict[Path, _Watched] = {}
        found = (each for target in targets for each in _collected(target))
        self._collected = [*{(each.box.resolve(), each.pid, each.seen_ns): each for each in found}.values()]
        self._ends: dict[str, list[Process]] = {}  # by the folder of the run
        self._present: dict[Path, None] = {}
        self._problems: list[str] = []
        self._changed_ns: list[int] = []
        self._searched_ns = self._looks = 0

    def look(self) -> Look:
        """Read what has changed since the previous look. Never raises for the content of boxes and folders."""
        self._search()
        self._ends.clear()
        for path in [path for path, watched in self._watched.items() if watched.gone and path in self._present]:
            del self._watched[path]  # a search has missed it
        new = [path for path in self._present if path not in self._watched]
        unreadable = [each for path in new if (each := self._open(path)) is not None]
        self._looks += 1
        turns = -(-len(self._present) // _AT_ONCE) or 1
        for number, (path, watched) in enumerate(self._watched.items(), self._looks):
            if path in self._present:
                watched.read(self.show, only_page=number % turns > 0)
            else:
                watched.depart(self._ends)
        rows = [watched.row(self.show) for watched in self._watched.values()]
        shown = [*self._without_replaced([*rows, *self._collected]), *unreadable]
        return Look(time.time_ns(), tuple(jobs_of(shown, self._facts)), tuple(dict.fromkeys(self._problems)))

    def close(self) -> None:
        """Close all boxes. Idempotent."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()

    def _facts(self, processes: Sequence[Process]) -> list[Process]:
        """Return the readable processes of a job over one period."""
        histories = {each.box: watched.history for each in processes if (watched := self._watched.get(each.box))}
        return over_a_period([each for each in processes if not each.problem], histories)

    def _without_replaced(self, rows: list[Process]) -> list[Process]:
        """Return rows without those whose place another process has taken; forget the vanished boxes among these."""
        left_out = {each.box for each in replaced(rows)}
        gone = [each for each in rows if self._is_gone(each) and each.box not in left_out]
        gone.sort(key=lambda each: each.seen_ns)
        left_out.update(each.box for each in gone[: max(len(gone) - _MOST_GONE, 0)])
        for each in rows:
            if each.box in left_out and self._is_gone(each):
                self._watched.pop(each.box).close()
        return [each for each in rows if each.box not in left_out]

    def _is_gone(self, row: Process) -> bool:
        watched = self._watched.get(row.box)
        return watched is not None and watched.gone

    def _search(self) -> None:
        """Search for boxes, unless no entry of their folders has changed since the last search."""
        changed_ns = [_changed_ns(folder) for target in self._targets for folder in folders_of(target)]
        now_ns = time.time_ns()
        if changed_ns == self._changed_ns and now_ns - self._searched_ns < _SEARCH_NS:
            return
        self._present.clear()
        self._problems.clear()
        found: list[Path] = []
        for target in self._targets:
            try:
                found += boxes_of(target, self._problems)
            except FolderError:
                pass  # the folder was removed since the start
            except OSError as error:
                self._problems.append(f"boxes cannot be searched: {reason(error)}")
        unique = {path.parent.resolve() / path.name: path for path in reversed(found)}
        self._present.update(dict.fromkeys(reversed(unique.values())))
        # A folder that has just changed may change again without another time.
        self._changed_ns = changed_ns if now_ns - max(changed_ns, default=0) > _TICK_NS else []
        self._searched_ns = now_ns

    def _open(self, path: Path) -> Process | None:
        """Begin to watch a box. If it cannot be read, return a row that shows why, unless the box was removed."""
        try:
            self._watched[path] = _Watched(path)
        except Exception as error:  # the content may be damaged in any way
            state = State.ALIVE if _runs(path) else State.DEAD
            return _unreadable(path, state, reason(error)) if path.exists() else None
        return None


class _Watched:
    """A box that is watched: only the parts that have changed are read again.

    Attributes:
        gone: The box has vanished.
        history: The totals of the process.

    Raises:
        RecordError: The box is damaged, or of a newer version.
        FolderError: The box is a link, or belongs to another user.
        OSError: The box cannot be read, or was removed.
    """

    def __init__(self, path: Path) -> None:
        self.gone = False
        self.history = History()
        self._steps, self._times, self._numbers = StepRate(), StepDistribution(), _Numbers()
        self._end: Process | None = None  # None while it runs
        self._examined = False  # the box of a dead process
        self._searched = 0
        self._problem = ""
        self._show: str | None = None
        self._page_file = -1
        self._step_times = b""
        self._defined = 1
        self._event: model.PastEvent | None = None
        self._path = path
        self._folder = Folder.open(path, probe=False)
        try:
            self._record = read_head(self._folder)
            self._life = life_of(self._record)
            self._open_page()
        except BaseException:
            self.close()
            raise

    def read(self, show: str | None, *, only_page: bool) -> None:
        """Read what has changed; of a process that runs, the page only, if that is wanted. Note a problem."""
        try:
            if self._examined:
                self._folder = Folder.open(self._path, probe=False)
            if self._folder.has(ENDED):
                return  # the next search does not find it
            with suppress(OSError):
                self._see_page()
            if is_running(self._folder, self._record.owner, self._record.page):
                self._end, self._examined = None, False
                self._refresh(show, only_page=only_page)
            elif not self._examined or show != self._show:
                self._end = self._end or replace(self._life, state=State.DEAD)  # until the box is read
                self._refresh(show)
                record = read_record(self._folder)
                self._end = model.dead(life_of(record), record, death_of(record, Deaths()))
                self._examined = True
            self._problem = ""
        except FileNotFoundError:
            pass  # it was removed; the next look does not find it
        except Exception as error:  # the content may be damaged in any way
            self._problem = reason(error)
        finally:
            if self._examined:
                self.close()  # many processes may be dead, and each open box takes two descriptors

    def depart(self, ends: dict[str, list[Process]]) -> None:
        """Search for the end of the process, whose box has vanished.

        Args:
            ends: The processes that ``monitel run`` keeps, by the folder of the run; those that are missing are read.
        """
        if not self.gone:
            self.gone, self._problem = True, ""
            with suppress(OSError):
                self._see_page()  # it outlives the box
                self._times.see(self._step_times, time.monotonic_ns())
            self.close()
        if self._searched >= _ATTEMPTS:
            return
        self._searched += 1
        try:
            end, certain = self._find_end(ends)
            self._problem = ""
        except Exception as error:  # what is stored may be damaged, or out of reach
            end, certain, self._problem = None, False, reason(error)
        if certain:
            self._searched = _ATTEMPTS
        self._end = end or self._end or replace(model.now(self._life, self._record), state=State.ENDED)

    def _find_end(self, ends: dict[str, list[Process]]) -> tuple[Process | None, bool]:
        """Return the end of the process, which was collected or has removed its box, and True if that is certain.

        ``monitel run`` keeps each end while it runs. The telemetry of a dead process is in a spool until a backend has
        it, and so is the status of a process that has ended by itself. Without either, a process that was not seen dead
        has ended by itself.
        """
        record, known = self._record, self._end
        if record.run and is_run_folder(record.run):
            if record.run not in ends:
                ends[record.run] = read_ends(Path(record.run))[0]
            for found in (each for each in ends[record.run] if each.owner == record.owner):
                return found, True
        if known is not None and known.death:
            return known, True
        spool = record.spool
        places = [self._path] if spool is None or not spool.is_absolute() else [self._path, spool]
        left = [end for place in places for end in ends_below(place, [])]
        if died := next((end for end in left if end.has_died), None):
            return died, True
        if known is None and left:
            return replace(left[-1], step=model.now(self._life, record).step), True
        return known, False

    def row(self, show: str | None) -> Process:
        """Return the process. If the box has values of unexpected types, the row shows why."""
        try:
            return self._row(show)
        except Exception as error:
            state = State.ALIVE if self._end is None else self._end.state
            return _unreadable(self._path, state, f"unexpected values: {error!r}")

    def _row(self, show: str | None) -> Process:
        life, end, recent = self._life, self._end, self.history.recent
        name, value = self._numbers.value(show)
        row: dict[str, Any] = {
            "rates": tuple(self._steps.rates),
            "step_p50": self._times.median,
            "step_p99": self._times.p99,
            "data": _share(recent, "data"),
            "waiting": _waiting(recent),
            "value_name": name,
            "value": value,
            "event": self._event,
            "problem": self._problem,
            "record": None,
        }
        if end is None:
            found = model.now(life, self._record, **row)
            return replace(found, rate=self._rate(found, time.monotonic_ns()))
        found = with_totals(life, end) if end.made >= life.made else life
        row |= {name: getattr(end, name) for name in _END}
        return replace(found, **row, time_ns=time.time_ns(), stepped=life.stepped or end.made > 0)

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

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._folder.close()
        if self._page_file >= 0:
            os.close(self._page_file)
            self._page_file = -1

    def _refresh(self, show: str | None, *, only_page: bool = False) -> None:
        self._open_page()
        self._see_page()
        now_ns = time.monotonic_ns()
        self._steps.look(now_ns)
        if not (only_page and self._record.snapshot is not None):
            self._times.see(self._step_times, now_ns)
            self._show = show
            self._see_snapshot()

    def _open_page(self) -> None:
        """Open the page, unless it is open. A box that is being made has none yet."""
        if self._page_file < 0:
            with suppress(FileNotFoundError):
                self._page_file = self._folder.open_file(PAGE, os.O_RDONLY)

    def _see_page(self) -> None:
        if self._page_file >= 0:
            content = os.pread(self._page_file, PAGE_BYTES, 0)
            page = self._record.page = read_page(content)
            self._step_times = read_step_times(content)
            if page.step is not None and page.step_ns is not None:
                self._steps.note(page.step, page.step_ns)

    def _see_snapshot(self) -> None:
        """Take over a new snapshot.

        Raises:
            RecordError: The values of the snapshot are not those of a snapshot.
        """
        known = self._record.snapshot
        try:
            snapshot = read_snapshot(self._folder)
            if snapshot is None or (known is not None and snapshot.monotonic_ns <= known.monotonic_ns):
                return
            record = Record(self._path, self._record.names, snapshot, self._record.page)
            numbers = [each[0] for name in ("totals", "numbers") for each in snapshot.values.get(name) or ()]
            if len(record.names) <= max([0, *snapshot.window_names, *numbers]):
                record.names = names_of(self._folder)
            series = [Definition(*each) for each in record.names[self._defined :]]
            self._defined = len(record.names)
            self._numbers.see(record, (each.name for each in series if each.kind == STAT))
            life = life_of(record)
            self._event = life.event or self._event
        except (RecordError, OSError):
            raise
        except Exception as error:  # its checksum is right, and its values are not
            raise RecordError(f"its values are not those of a black box: {error!r}") from error
        self._record, self._life = record, replace(life, record=None)
        self.history.add(self._life)


class _Numbers:
    """The last samples of open windows, and the last logged numbers, of which a row shows one."""

    def __init__(self) -> None:
        self._stats: dict[str, None] = {}  # names, in the order in which they were defined
        self._samples: dict[str, tuple[int, float]] = {}  # with the numbers of the series that they are from
        self._logged: dict[str, float] = {}

    def see(self, record: Record, names: Iterable[str]) -> None:
        """Take over logged numbers, of one name the latest; and windows, of several series with one name the first.

        Args:
            record: The record with a new snapshot.
            names: New names of Stats.
        """
        if len(self._stats) + len(self._logged) < _MOST_NAMES:
            self._stats.update(dict.fromkeys(names))
            numbers = sorted(record.numbers, key=lambda each: each[1])
            self._logged.update({series.name: value for series, _, value in numbers})
        for each in record.windows:  # in the order of their ends
            name = each.series.name
            if name in self._stats and each.number <= self._samples.get(name, (each.number,))[0]:
                self._samples[name] = each.number, each.window.snapshot.last

    def value(self, show: str | None) -> tuple[str, float | None]:
        """Return a name with its last value.

        A Stat comes before a logged number of the same name, and an exact name before one that ends with it. While no
        window of the Stat is open, the value is its last known one.

        Args:
            show: The name; None for ``loss``, or the first name that ends with it.
        """
        samples = {name: self._samples[name][1] for name in self._stats if name in self._samples}
        wanted = "loss" if show is None else show
        for values in (samples, self._logged):
            if wanted in values:
                return wanted, values[wanted]
        for values in (samples, self._logged) if show is None else ():
            if name := next((name for name in values if name.endswith(wanted)), ""):
                return name, values[name]
        return show or "", None


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


def _unreadable(path: Path, state: State, problem: str) -> Process:
    return Process(box=path, pid=process_of(path) or None, state=state, problem=problem)


def _collected(target: str) -> list[Process]:
    """Return the processes of a target whose boxes were collected into spools, if it has no box.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """
    problems: list[str] = []
    if boxes_of(target, problems):
        return []
    found = deaths_of(target, problems)
    if not found:
        raise nothing_known(target, problems)
    return found


def _changed_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _runs(path: Path) -> bool:
    with suppress(FolderError, OSError):
        folder = Folder.open(path, probe=False)
        try:
            return is_alive(folder)
        finally:
            folder.close()
    return False
