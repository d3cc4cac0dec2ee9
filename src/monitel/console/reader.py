"""The processes that a user asks for, read once for every view: from boxes, spools with their deaths, and /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from monitel.attributes import whole
from monitel.blackbox.death import NAME as DIED
from monitel.blackbox.death import Death
from monitel.blackbox.discovery import find_boxes, find_spools, holds_boxes, is_box_folder, is_running, pid_of
from monitel.blackbox.folder import Folder, FolderError, box_root
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.reading import Record, RecordError, read_record, text_of
from monitel.blackbox.record import ENDED, JOURNALS, STACKS_NOW, STACKS_WANTED
from monitel.blackbox.settings import existing_runs_dir, given_folder, spool_root
from monitel.console.job import with_pool_workers_completed
from monitel.process.os_threads import Event, Thread
from monitel.runs import process as model
from monitel.runs.process import PastEvent, Process, State, dead, event_of, life_of
from monitel_run.folder import START, kernel_fields

_ORDER = {State.DEAD: 0, State.ENDED: 1, State.SILENT: 2, State.ALIVE: 3}
_PATIENCE_S, _PAUSE_S = 3.0, 0.02
_STATE, _UTIME, _STIME = 0, 11, 12  # of `kernel_fields`
_SPOOL_PATIENCE_S = 2.0
_LARGEST_SPOOL = 32 << 20  # bytes
_EVENTS = 1000  # the newest ones
_ENDED = "run.ended"


def read_processes(target: str | None, problems: list[str], *, stacks: bool = True) -> list[Process]:
    """Return the processes that a user asks for: the dead ones first, then the silent ones.

    The target is a process id; or a box, a folder of boxes, or one of spools. None stands for all boxes of this user on
    this machine, or if there is none, for those that were collected into the usual spools. With stacks, those that
    run are asked for them, for at most three seconds, and the spools of all are read; otherwise nothing is written.
    """
    found = read_boxes(boxes_of(target, problems), problems, stacks=stacks)
    found = [*(deaths_beside(found) if target is None else ()), *found]
    if not found or (target is not None and _is_folder(target)):
        again: list[str] = []  # a box is looked at for the second time
        found += _deaths_of(target, again)
        problems += [each for each in again if each not in problems]
    if not found and target is not None:
        raise _nothing_known(target, problems)
    return found


# ---- boxes


def read_boxes(paths: Iterable[Path], problems: list[str], *, stacks: bool = True) -> list[Process]:
    """Return the processes of boxes, as :func:`read_processes` does. A box that vanishes meanwhile is left out."""
    found = [each for path in paths for each in _read_box(path, problems)]
    if stacks:
        found = _with_spools(_looked_at(found))
    return sorted(found, key=lambda each: (_ORDER[each.state], each.job, each.rank or 0, each.pid or 0, str(each.box)))


def _read_box(path: Path, problems: list[str]) -> list[Process]:
    """Return the process of a box; none if it cannot be read, or was removed meanwhile."""
    try:
        with closing(Folder.open(path, probe=False)) as folder:
            record = read_record(folder)
            found = model.process_of(record, alive=is_running(folder, record.owner))
        return [found.but(events=[*map(event_of, record.events)][-_EVENTS:])]
    except Exception as error:  # the content may be damaged in any way
        if path.exists():
            problems.append(f"{str(path)!r} cannot be read: {reason(error)}")
        return []


def _looked_at(processes: Sequence[Process]) -> list[Process]:
    """Return processes; those that run with their stacks and their state in the kernel.

    Those that do not answer may have ended meanwhile, or have called exec a moment ago. One that runs Python code
    answers within a second.
    """
    running = [each for each in processes if each.runs]
    answers = request_stacks([each.box for each in running])
    found = [each for each in processes if not each.runs]
    for each in running:
        stacks = answers.get(each.box, "")
        if not stacks and (ended := [again for again in _read_box(each.box, []) if not again.runs]):
            found += ended
            continue
        owner = each.owner
        kernel = kernel_state(owner.pid, owner.start) if owner is not None and owner.is_near else None
        silence = explain_silence(each.pid, kernel) if each.state is State.SILENT else []
        found.append(each.but(kernel=kernel, stacks=stacks, silence=silence))
    return found


def _with_spools(processes: Sequence[Process]) -> list[Process]:
    """Return processes with the events in their spools, as far as these are small, and are read in time.

    A spool may be on a file system that hangs, which may be why its process hangs.
    """
    events: dict[Path, list[PastEvent]] = {}

    def read(box: Path, path: Path) -> None:
        with suppress(Exception):  # the spool may be damaged in any way
            size = sum(file.stat().st_size for file in path.iterdir() if file.name.startswith("logs-"))
            events[box] = []
            if size <= _LARGEST_SPOOL:
                with closing(Folder.open(path, probe=False)) as folder:
                    events[box] = [*map(event_of, read_record(folder, journals=["logs"]).events)]

    spools = [(each.box, Path(each.spool)) for each in processes if each.spool]
    within(_SPOOL_PATIENCE_S, *(partial(read, *each) for each in spools if each[1].is_absolute()))
    found = []
    for each in processes:
        both = sorted([*events.get(each.box, ()), *each.events], key=lambda event: event.time_ns)
        unique = {repr(event): event for event in both[-2 * _EVENTS :]}  # some are moved between the two reads
        found.append(each.but(stored=each.box in events, events=[*unique.values()][-_EVENTS:]))
    return found


def within(seconds: float, *reads: Callable[[], object]) -> None:
    """Call functions side by side, each in a thread, and wait for so many seconds: a disk may hang."""
    deadline = time.monotonic() + seconds
    threads = [Thread(target=each, name="monitel-reader", daemon=True) for each in reads]
    for each in threads:
        each.start()
    for each in threads:
        each.join(max(deadline - time.monotonic(), 0))


def reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, RecordError | FolderError) else repr(error)


# ---- a process that runs, from outside: only files that any process of the user may read are used


class KernelState(NamedTuple):
    """State of a process in the kernel.

    The letter is that of the main thread: R running, S sleeping, D waiting for I/O that cannot be interrupted, T
    stopped, t stopped by a debugger.
    """

    letter: str
    waiting_in: str  # the kernel function in which the main thread sleeps; empty if it runs, or if that is secret
    cpu_ns: int  # of all threads so far


def kernel_state(pid: str, start: str) -> KernelState | None:
    """Return the state of the process that has started at these ticks since the boot; None if it has ended."""
    fields = kernel_fields(pid)
    if not fields or fields[START] != start:
        return None
    cpu_ns = (int(fields[_UTIME]) + int(fields[_STIME])) * 10**9 // os.sysconf("SC_CLK_TCK")
    return KernelState(fields[_STATE], content_of(Path("/proc", pid, "wchan")), cpu_ns)


def content_of(path: Path) -> str:
    """Return the content of a file; empty for a missing one, and for a zero, as of a thread that is in no function."""
    with suppress(OSError):
        content = path.read_bytes().decode("utf-8", "replace").strip()
        return "" if content == "0" else content
    return ""


def explain_silence(pid: int | None, kernel: KernelState | None) -> list[str]:
    """Return sentences: why no Python code of a process runs, by its state in the kernel; and what to do."""
    if kernel is None:
        return ["the process is in another container: there is nothing about it in /proc"]
    waits = f"state {kernel.letter}{f' in {kernel.waiting_in}' if kernel.waiting_in else ''}"
    why = {
        "T": "a signal has stopped the process (state T)",
        "t": "a debugger has stopped the process (state t)",
        "D": f"the process waits for a device or a file system, and cannot be interrupted ({waits})",
        "R": "no Python code runs: C code computes without releasing the GIL",
    }.get(kernel.letter, f"no Python code runs: C code waits without releasing the GIL (main thread: {waits})")
    advice = f"py-spy dump --pid {pid} shows the Python stacks, gdb -p {pid} the C stacks"
    return [
        why,
        {"T": f"kill -CONT {pid} lets it continue", "t": "the debugger lets it continue"}.get(kernel.letter, advice),
    ]


def request_stacks(boxes: Sequence[Path]) -> dict[Path, str]:
    """Return the present stacks of processes that run, for each box whose process answers within some seconds.

    All processes are asked at once. A request that is not answered is withdrawn.
    """
    deadline, pause = time.monotonic() + _PATIENCE_S, Event()  # never set
    answers: dict[Path, str] = {}
    with ExitStack() as opened:
        waiting = {}
        for path in boxes:
            with suppress(FolderError, OSError):  # it may be removed
                waiting[path] = box = opened.enter_context(closing(Folder.open(path, probe=False)))
                box.unlink(STACKS_NOW)
                with suppress(FileExistsError):  # another reader has asked
                    box.write_new(STACKS_WANTED, b"")
        while waiting:
            is_late = time.monotonic() >= deadline
            for path, box in [*waiting.items()]:
                if not box.has(STACKS_WANTED):
                    answers[path] = text_of(box, STACKS_NOW)
                elif is_late:
                    box.unlink(STACKS_WANTED)
                else:
                    continue
                del waiting[path]
            if waiting:
                pause.wait(_PAUSE_S)
    return answers


# ---- deaths and ends in spools


def deaths_below(root: Path, problems: list[str]) -> list[Process]:
    """Return the processes that died, by the events in the spools below a folder, as :func:`ends_below` does."""
    return [each for each in with_pool_workers_completed(ends_below(root, problems)) if each.has_died]


def deaths_beside(processes: Sequence[Process]) -> list[Process]:
    """Return the last death of each rank that is missing in a job that runs, by the spools beside those of the others.

    A disk that hangs is waited for as long as for any spool.
    """
    jobs: dict[tuple[object, ...], list[Process]] = {}
    for each in processes:
        if each.rank is not None and each.runs:
            jobs.setdefault((each.job, each.attempt or 0), []).append(each)
    jobs = {
        key: of
        for key, of in jobs.items()
        if len({each.rank for each in of}) < max(each.world_size or 0 for each in of)
    }
    roots = {Path(path).parent for of in jobs.values() for each in of for path in (each.spool, each.box) if path}
    died: list[Process] = []
    within(_SPOOL_PATIENCE_S, lambda: died.extend(each for root in roots for each in deaths_below(root, [])))
    known = {(each.job, each.attempt or 0, each.rank) for each in processes}
    found = {}
    for each in sorted(died, key=lambda each: each.seen_ns):
        job = each.job, each.attempt or 0
        missing = job in jobs and each.rank is not None and (*job, each.rank) not in known
        if missing and each.seen_ns > min(of.started_ns for of in jobs[job]):
            found[job, each.rank] = each
    return [*found.values()]


def ends_below(root: Path, problems: list[str], journals: Sequence[str] = JOURNALS) -> list[Process]:
    """Return the processes of all events about an end in the spools below a folder, in the order of their folders.

    The folder may be missing. The journal ``logs`` has the events; all of them show what is left.
    """
    try:
        found = find_spools(root)
    except FolderError:
        return []
    except OSError as error:
        problems.append(f"{str(root)!r} cannot be searched: {error.strerror}")
        return []
    problems += found.problems
    ends = []
    for path in found.folders:
        try:
            with closing(Folder.open(path)) as folder:
                record = read_record(folder, journals=journals, events=(DIED, _ENDED))
            ends += [_of_end(record, event) for event in record.events if event.name in {DIED, _ENDED}]
        except Exception as error:  # the spool may be damaged in any way
            words = str(error) if isinstance(error, FolderError) else f"{str(path)!r} cannot be read: {reason(error)}"
            problems.append(words)
    return ends


def _of_end(record: Record, event: LogRecord) -> Process:
    known = event.attributes
    if event.name == _ENDED:
        status, step = str(known.get("run.status", "")), whole(known.get("run.step"))
        return life_of(record).but(state=State.ENDED, status=status, seen_ns=event.time_ns, step=step, collected=True)
    shown = event_of(event)
    shown = shown._replace(attributes={name: each for name, each in known.items() if name != "code.stacktrace"})
    return dead(record, Death.of(record.owner, event)).but(event=shown, events=[shown], collected=True)


# ---- targets


def boxes_of(target: str | None, problems: list[str]) -> list[Path]:
    """Return the black boxes that a user asks for; arguments and errors are those of :func:`read_processes`."""
    if target is None:
        return _boxes(problems)
    if not _is_folder(target):
        return [path for path in _boxes([]) if pid_of(path) == int(target)]
    path = Path(target)
    if _is_box(path):
        return [path]
    return _boxes(problems, path) if holds_boxes(path) else []


def _deaths_of(target: str | None, problems: list[str]) -> list[Process]:
    if target is not None and _is_folder(target):
        path = Path(target)
        return [] if _is_box(path) else deaths_below(path, problems)
    roots = [spool_root(), box_root(given_folder("black_box_dir"))]  # a collector may have ended some in place
    runs = existing_runs_dir()
    if target is None:
        found = [each for root in filter(None, roots) for each in deaths_below(root, problems)]
        return [*found, *(each for root in runs for each in deaths_below(root, []))]  # some are of other users
    return [
        each
        for root in filter(None, [*roots, *runs])
        for each in ends_below(root, [])
        if each.has_died and each.pid == int(target)
    ]


def _nothing_known(target: str, problems: list[str]) -> FolderError:
    if _is_folder(target):
        words = "; ".join(problems) or "it holds no black box, and no spool with an event process.died"
        return FolderError(f"nothing is known from {str(Path(target))!r}: {words}")
    words = (
        "no such process runs; if it has died, its box may have been collected: give the folder of its spool, or "
        "look for the event process.died in the backend"
    )
    if Path(f"/proc/{int(target)}").exists():
        words = (
            "the process runs, but it belongs to another user, has recorded nothing with monitel, or has no box; "
            "monitel doctor, run with its variables, shows where boxes are made"
        )
    return FolderError("; ".join(problems) or f"there is no black box of process {int(target)}: {words}")


def _is_folder(target: str) -> bool:
    return not (target.isascii() and target.isdecimal())


def _boxes(problems: list[str], root: Path | None = None) -> list[Path]:
    boxes = find_boxes(root or given_folder("black_box_dir"))
    problems += boxes.problems
    return [*boxes.dead, *boxes.live]  # those of processes that were killed come first


def _is_box(path: Path) -> bool:
    """Return True for a box that nobody has ended: other ones are read like spools."""
    if not path.is_dir():
        raise FolderError(f"there is no folder {str(path)!r}; give a process id, or a folder")
    return is_box_folder(path) and not (path / ENDED).exists()
