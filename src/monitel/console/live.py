"""The processes of this machine, looked at again and again, for ``monitel top``. Nothing is locked or written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from monitel.blackbox.context_page import PAGE, PAGE_BYTES, read_page
from monitel.blackbox.discovery import is_running, pid_of
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.process import Owner
from monitel.blackbox.reading import Record, read_record
from monitel.blackbox.record import ENDED
from monitel.console.job import Job, jobs_of, replaced
from monitel.console.period import Looks, over_a_period
from monitel.console.reader import (
    boxes_of,
    content_of,
    deaths_beside,
    ends_below,
    kernel_state,
    read_processes,
    reason,
)
from monitel.runs.ended import read_ends
from monitel.runs.process import Process, State, last_values, now, process_of
from monitel_run.folder import is_run_folder

_MOST_GONE = 200  # processes that have ended, and are still shown
_ATTEMPTS = 5  # looks in which the end of a process is searched
_END = (
    *("state", "death", "status", "exception", "seen_ns", "observed", "step", "step_age_ns", "activity"),
    *("activity_age_ns", "stage", "waits", "stacks"),
)


class Look(NamedTuple):
    time_ns: int
    jobs: tuple[Job, ...]
    problems: tuple[str, ...] = ()  # boxes and folders that cannot be read; not printable as they are

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(each for job in self.jobs for each in job.processes)


class Live:
    """All processes with a black box, or those of some targets of ``monitel autopsy``, looked at again and again.

    A process that has died stays until another one takes its place. Use it in one thread. Rows show a Stat or logged
    number; by default ``loss``, or the first name that ends with it.
    """

    def __init__(self, targets: Sequence[str] = (), *, show: str | None = None) -> None:
        self._show, self._meter = show, UsageMeter()
        self._targets: Sequence[str | None] = [*dict.fromkeys(targets)] or [None]
        self._searches_deaths = not targets
        self._watched: dict[Path, _Watched] = {}
        without_box = [target for target in targets if not boxes_of(target, [])]
        found = (each for target in without_box for each in read_processes(target, [], stacks=False))
        self._collected = [*{(each.box.resolve(), each.pid, each.seen_ns): each for each in found}.values()]

    def look(self) -> Look:
        """Read all boxes. Never raises for the content of boxes and folders."""
        problems, ends = list[str](), dict[str, list[Process]]()
        present = self._boxes(problems)
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
        if self._searches_deaths:
            self._searches_deaths, self._collected = False, [*self._collected, *deaths_beside(rows)]
        shown = self._meter.read(self._without_replaced([*rows, *self._collected]))
        looks = {path: watched.looks for path, watched in self._watched.items()}
        jobs = [replace(job, processes=over_a_period(job.processes, looks)) for job in jobs_of(shown)]
        return Look(time.time_ns(), tuple(jobs), tuple(dict.fromkeys(problems)))

    def _boxes(self, problems: list[str]) -> dict[Path, None]:
        found: list[Path] = []
        for target in self._targets:
            try:
                found += boxes_of(target, problems)
            except FolderError:
                pass  # the folder was removed since the start
            except OSError as error:
                problems.append(f"boxes cannot be searched: {reason(error)}")
        return dict.fromkeys(found)

    def _without_replaced(self, rows: list[Process]) -> list[Process]:
        """Return rows without those whose place another process has taken; forget the vanished boxes among these."""
        left_out = {each.box for each in replaced(rows)}
        gone = {path for path, watched in self._watched.items() if watched.gone}
        ended = sorted((each.seen_ns, each.box) for each in rows if each.box in gone - left_out)
        left_out.update(box for _, box in ended[:-_MOST_GONE])
        for path in gone & left_out:
            del self._watched[path]
        return [each for each in rows if each.box not in left_out]


class UsageMeter:
    """Reads the usage of processes again and again. What is missing is None, and never an error."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[float, float]] = {}  # when, and the CPU seconds until then
        self._nvml: Any = None
        with suppress(Exception):  # it is not installed, or without a driver
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml

    def read(self, processes: Iterable[Process]) -> list[Process]:
        """Return processes; those that run with the resources that they use. CPU time needs a previous reading."""
        found, now, gpus = [], {}, _gpus(self._nvml)
        for process in processes:
            used = _usage(process.owner) if process.runs and process.owner is not None else None
            if used is None:
                found.append(process)
                continue
            now[process.box] = at_s, cpu_s = time.monotonic(), used[0]
            before_s, before_cpu_s = self._before.get(process.box, now[process.box])
            cpu = (cpu_s - before_cpu_s) / (at_s - before_s) if at_s > before_s else None
            gpu, gpu_memory = gpus.get(process.pid, (None, None))
            found.append(process.but(cpu=cpu, memory=used[1], gpu=gpu, gpu_memory=gpu_memory))
        self._before = now
        return found


def _usage(owner: Owner) -> tuple[float, int] | None:
    """Return the CPU seconds and the resident bytes of a process; None if it has ended."""
    state, pages = kernel_state(owner.pid, owner.start), content_of(Path("/proc", owner.pid, "statm")).split()
    if state is None or state.letter == "Z" or not pages:
        return None
    return state.cpu_ns / 1e9, int(pages[1]) * os.sysconf("SC_PAGE_SIZE")


def _gpus(nvml: Any) -> dict[int | None, tuple[float, int]]:
    """Return by process how busy the busiest of its GPUs is, and its bytes on all that answer."""
    found: dict[int | None, tuple[float, int]] = {}
    for index in range(0 if nvml is None else nvml.nvmlDeviceGetCount()):
        with suppress(Exception):  # the kinds of errors differ with the version; with MIG there are no rates
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            busy = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                share, size = found.get(process.pid, (0.0, 0))
                found[process.pid] = max(share, busy), size + (process.usedGpuMemory or 0)
    return found


class _Watched:
    """A process whose box is read at each look until it has ended, and what several looks have shown."""

    def __init__(self, path: Path, show: str | None) -> None:
        self.gone = False  # the box has vanished
        self.looks = Looks()
        self._path, self._show = path, show
        self._values: dict[tuple[bool, bool, int, str], float] = {}  # of the series that ``show`` chooses
        self._page: mmap | None = None  # it outlives the box
        self._row: Process | None = None  # None until the box was read
        self._searched = 0

    def look(self, ends: dict[str, list[Process]], *, present: bool) -> Process | None:
        """Return the process as it is now; None if the box was removed before it was read.

        If the box is there and cannot be read, the process is as before, with the reason.
        """
        row = self._row
        try:
            if present and (row is None or row.runs):
                self._read()
            elif not present and row is not None and row.record is not None:
                self._depart(row, row.record, ends)
        except FileNotFoundError:
            pass  # it was removed; the next look does not find it
        except Exception as error:  # the content may be damaged in any way
            if self._path.exists():
                return (row or Process(box=self._path, pid=pid_of(self._path) or None)).but(problem=reason(error))
        if self._row is not None and not self._row.runs:
            self._row = self._row.but(time_ns=time.time_ns())
        return self._row

    def _read(self) -> None:
        with closing(Folder.open(self._path, probe=False)) as folder:
            if folder.has(ENDED):
                return  # the next search does not find it
            record = read_record(folder, journals=())
            if self._page is None:
                with (
                    suppress(FileNotFoundError),
                    os.fdopen(folder.open_file(PAGE, os.O_RDONLY)) as page,
                ):  # a new box has none
                    self._page = mmap(page.fileno(), PAGE_BYTES, access=ACCESS_READ)
            if is_running(folder, record.owner):
                row = now(record)
                self.looks.add(row.but(record=None), record.page)
                rate = self.looks.rate(row, time.monotonic_ns())
            else:
                row, rate = process_of(read_record(folder), alive=False).but(record=record), None  # without its items
                self.looks.add(row.but(record=None), record.page)
            self._row = row.but(**self.looks.numbers(), **self._value(record), rate=rate)

    def _value(self, record: Record) -> dict[str, Any]:
        """Return name and value of a row. While no window is open, the value is the last known one."""
        self._values |= last_values(record, self._show)
        chosen = min(self._values, default=(False, False, 0, self._show or ""))
        return {"value_name": chosen[-1], "value": self._values.get(chosen)}

    def _depart(self, row: Process, record: Record, ends: dict[str, list[Process]]) -> None:
        """Search for the end of the process, whose box has vanished. Ends of a ``monitel run`` are read once a look."""
        if not self.gone and self._page is not None:
            record.page = read_page(self._page[:])
        self.gone = True
        if self._searched < _ATTEMPTS:
            end = _known_end(row, record, ends)
            self._searched = self._searched + 1 if end is None else _ATTEMPTS
            if end is None and row.runs:
                end = now(record).but(state=State.ENDED)
            if end is not None:
                fields = {name: getattr(end, name) for name in _END}
                self._row = row.but(**fields, made=max(row.made, end.made), rate=None)


def _known_end(row: Process, record: Record, ends: dict[str, list[Process]]) -> Process | None:
    """Return the end of a process, which was collected or has removed its box; None if it is not certain.

    ``monitel run`` keeps each end while it runs. The telemetry of a dead process is in a spool until a backend has it,
    and so is the status of a process that has ended by itself. Without either, a process that was not seen dead has
    ended by itself.
    """
    if record.run and is_run_folder(record.run):
        if record.run not in ends:
            ends[record.run] = read_ends(Path(record.run))[0]
        if found := next((each for each in ends[record.run] if each.owner == record.owner), None):
            return found
    if row.death:
        return row
    places = [row.box] if record.spool is None or not record.spool.is_absolute() else [row.box, record.spool]
    left = [end for place in places for end in ends_below(place, [])]
    died = next((end for end in left if end.has_died), None)
    return died or (left[-1] if left and row.state is not State.DEAD else None)
