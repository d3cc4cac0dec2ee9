"""A process that runs, from outside: its state in the kernel, why it has no heartbeat, and its stacks if it answers.

Only files that any process of the user may read are used.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import text_of
from monitel.blackbox.record import STACKS_NOW, STACKS_WANTED
from monitel.process.os_threads import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUSY = 0.2  # cores
_BUSY_BESIDE_OTHERS = 0.05  # cores, of a thread that always waits for one; a thread that waits for the GIL takes less
_THREADS = 512  # beyond, threads are not looked at
_STATE, _UTIME, _STIME, _START = 0, 11, 12, 19  # fields of /proc/PID/stat behind the name


class KernelState(NamedTuple):
    """State of a process in the kernel.

    Attributes:
        letter: State of the main thread: R running, S sleeping, D waiting for I/O that cannot be interrupted, T
            stopped, t stopped by a debugger.
        waiting_in: The kernel function in which the main thread sleeps; empty if it runs, or if that is secret.
        threads: Number of threads by state.
        cpu_ns: CPU time of all threads so far.
        tracer: Id of the process that traces it; 0 if there is none.
        stuck: Kernel functions in which threads of state D wait.
    """

    letter: str
    waiting_in: str
    threads: Counter[str]
    cpu_ns: int
    tracer: int
    stuck: tuple[str, ...] = ()


def kernel_state(pid: str, start: str, proc: Path = Path("/proc")) -> KernelState | None:
    """Return the state of a process; None if it has ended, or if there is no /proc.

    Args:
        pid: The process id in this namespace.
        start: The start time of the process, in ticks since the boot. Another process may have the id by now.
        proc: The folder of the process file system.
    """
    if not (pid.isascii() and pid.isdecimal()):
        return None
    folder = proc / pid
    fields = _stat(folder)
    if fields is None or fields[_START] != start:
        return None
    threads: Counter[str] = Counter()
    stuck = set()
    with suppress(OSError):
        for name in sorted(os.listdir(folder / "task"))[:_THREADS]:  # noqa: PTH208  only names are needed
            task = _stat(folder / "task" / name)
            if task is not None:
                threads[task[_STATE]] += 1
                if task[_STATE] == "D":
                    stuck.add(_waiting_in(folder / "task" / name) or "an unknown place")
    ticks = os.sysconf("SC_CLK_TCK")
    cpu_ns = sum(int(fields[each]) for each in (_UTIME, _STIME)) * 10**9 // ticks
    return KernelState(fields[_STATE], _waiting_in(folder), threads, cpu_ns, _tracer(folder), tuple(sorted(stuck)))


def _stat(folder: Path) -> list[str] | None:
    """Return the fields of a stat file behind the name of the command, which may contain any character."""
    try:
        fields = _read(folder / "stat").rpartition(")")[2].split()
    except OSError:
        return None
    numbers = fields[_UTIME : _STIME + 1]
    return fields if len(fields) > _START and all(map(str.isdecimal, numbers)) else None


def _waiting_in(folder: Path) -> str:
    try:
        found = _read(folder / "wchan").strip()
    except OSError:
        return ""
    return "" if found == "0" else found


def _tracer(folder: Path) -> int:
    with suppress(OSError, ValueError):
        for line in _read(folder / "status").splitlines():
            if line.startswith("TracerPid:"):
                return int(line.partition(":")[2])
    return 0


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def explain_silence(pid: int | None, now: KernelState, before: KernelState | None, elapsed_ns: int) -> list[str]:
    """Return sentences: why no Python code of a process runs, and what to do.

    Args:
        pid: Id of the process.
        now: Its state.
        before: Its state some time earlier; None if unknown.
        elapsed_ns: That time.
    """
    if now.letter == "T":
        return ["a signal has stopped the process (state T)", f"kill -CONT {pid} lets it continue"]
    if now.letter == "t":
        return [f"a debugger has stopped the process (state t): process {now.tracer}"]
    found = []
    if now.stuck:
        found.append(
            f"{now.threads['D']} of {now.threads.total()} threads in state D: they wait for a device or a file system, "
            f"and cannot be interrupted, in {' and '.join(now.stuck)}"
        )
    share, runs = 0.0, False
    if before is not None and elapsed_ns > 0:
        share = (now.cpu_ns - before.cpu_ns) / elapsed_ns
        runs = share >= _BUSY_BESIDE_OTHERS and "R" in {*now.threads} & {*before.threads}
    if share >= _BUSY or runs:
        found.append(f"no Python code runs: C code computes without releasing the GIL ({share:.1f} cores)")
    elif not now.stuck:
        waits = f" in {now.waiting_in}" if now.waiting_in else ""
        state = f"main thread: state {now.letter}{waits}"
        found.append(f"no Python code runs: C code waits without releasing the GIL ({state})")
    return [*found, f"py-spy dump --pid {pid} shows the Python stacks, gdb -p {pid} the C stacks"]


_STACKS_PAUSE_S = 0.02


def request_stacks(boxes: Mapping[Path, float]) -> dict[Path, str]:
    """Return the present stacks of processes that run, for each box whose process answers in time.

    All processes are asked at once. A request that is not answered is withdrawn.

    Args:
        boxes: The boxes, and for each the longest time to wait, seconds.
    """
    begin, pause = time.monotonic(), Event()  # never set
    answers: dict[Path, str] = {}
    with ExitStack() as opened:
        waiting = {}
        for path in boxes:
            with suppress(FolderError, OSError):  # it may be removed
                box = opened.enter_context(closing(Folder.open(path, probe=False)))
                waiting[path] = box, _answer(box)
                with suppress(FileExistsError):  # another reader has asked
                    box.write_new(STACKS_WANTED, b"")
        while waiting:
            elapsed_s = time.monotonic() - begin
            for path, (box, before) in [*waiting.items()]:
                if not box.has(STACKS_WANTED):
                    if _answer(box) != before:  # else another reader has withdrawn the request, or the box is removed
                        answers[path] = text_of(box, STACKS_NOW)
                elif elapsed_s >= boxes[path]:
                    box.unlink(STACKS_WANTED)
                else:
                    continue
                del waiting[path]
            if waiting:
                pause.wait(_STACKS_PAUSE_S)
    return answers


def _answer(box: Folder) -> tuple[int, int] | None:
    """Return a value that differs after each answer; None before the first one."""
    try:
        status = box.status(STACKS_NOW)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
