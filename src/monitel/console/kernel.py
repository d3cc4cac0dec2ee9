"""A process that runs, from outside: why it has no heartbeat, its stacks, and the resources that it uses.

Only files that any process of the user may read are used.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import text_of
from monitel.blackbox.record import STACKS_NOW, STACKS_WANTED
from monitel.process.os_threads import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monitel.blackbox.process import Owner
    from monitel.runs.process import Process

_BUSY = 0.1  # cores; threads that wait for the GIL take less
_STATE, _UTIME, _STIME, _START = 0, 11, 12, 19  # fields of /proc/PID/stat behind the name
_STACKS_PAUSE_S = 0.02


class KernelState(NamedTuple):
    """State of a process in the kernel.

    The letter is that of the main thread: R running, S sleeping, D waiting for I/O that cannot be interrupted, T
    stopped, t stopped by a debugger.
    """

    letter: str
    waiting_in: str  # the kernel function in which the main thread sleeps; empty if it runs, or if that is secret
    cpu_ns: int  # of all threads so far


def kernel_state(pid: str, start: str, proc: Path = Path("/proc")) -> KernelState | None:
    """Return the state of the process that has started at these ticks since the boot; None if it has ended."""
    fields = _stat(proc / pid) if pid.isdecimal() else None
    if fields is None or fields[_START] != start:
        return None
    cpu_ns = (int(fields[_UTIME]) + int(fields[_STIME])) * 10**9 // os.sysconf("SC_CLK_TCK")
    return KernelState(fields[_STATE], _text(proc / pid / "wchan"), cpu_ns)


def _stat(folder: Path) -> list[str] | None:
    """Return the fields of a stat file behind the name of the command, which may contain any character."""
    fields = _text(folder / "stat").rpartition(")")[2].split()
    return fields if len(fields) > _START and all(map(str.isdecimal, fields[_UTIME : _STIME + 1])) else None


def _text(path: Path) -> str:
    """Return the content of a file; empty for a missing one, and for a zero, as of a thread that is in no function."""
    with suppress(OSError):
        content = path.read_bytes().decode("utf-8", "replace").strip()
        return "" if content == "0" else content
    return ""


def explain_silence(pid: int | None, now: KernelState, before: KernelState | None, elapsed_ns: int) -> list[str]:
    """Return sentences: why no Python code of a process runs, by its state now and some time before; and what to do."""
    if now.letter == "T":
        return ["a signal has stopped the process (state T)", f"kill -CONT {pid} lets it continue"]
    if now.letter == "t":
        return ["a debugger has stopped the process (state t)"]
    share = 0.0 if before is None or elapsed_ns <= 0 else (now.cpu_ns - before.cpu_ns) / elapsed_ns
    waits = f" in {now.waiting_in}" if now.waiting_in else ""
    if now.letter == "D":
        why = f"the process waits for a device or a file system, and cannot be interrupted (state D{waits})"
    elif share >= _BUSY:
        why = f"no Python code runs: C code computes without releasing the GIL ({share:.1f} cores)"
    else:
        why = f"no Python code runs: C code waits without releasing the GIL (main thread: state {now.letter}{waits})"
    return [why, f"py-spy dump --pid {pid} shows the Python stacks, gdb -p {pid} the C stacks"]


def request_stacks(boxes: Mapping[Path, float]) -> dict[Path, str]:
    """Return the present stacks of processes that run, for each box whose process answers within its seconds.

    All processes are asked at once. A request that is not answered is withdrawn.
    """
    begin, pause = time.monotonic(), Event()  # never set
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
            elapsed_s = time.monotonic() - begin
            for path, box in [*waiting.items()]:
                if not box.has(STACKS_WANTED):
                    answers[path] = text_of(box, STACKS_NOW)
                elif elapsed_s >= boxes[path]:
                    box.unlink(STACKS_WANTED)
                else:
                    continue
                del waiting[path]
            if waiting:
                pause.wait(_STACKS_PAUSE_S)
    return answers


# ---- what processes use


class UsageMeter:
    """Reads the usage of processes again and again. What is missing is None, and never an error."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[float, float]] = {}  # when, and the CPU seconds until then

    def read(self, processes: Iterable[Process]) -> list[Process]:
        """Return processes; those that run with the resources that they use. CPU time needs a previous reading."""
        found, now = [], {}
        for process in processes:
            used = _usage(process.owner) if process.runs and process.owner is not None else None
            if used is None:
                found.append(process)
                continue
            now[process.box] = at_s, cpu_s = time.monotonic(), used[0]
            before_s, before_cpu_s = self._before.get(process.box, now[process.box])
            cpu = (cpu_s - before_cpu_s) / (at_s - before_s) if at_s > before_s else None
            found.append(process.but(cpu=cpu, memory=used[1]))
        self._before = now
        return found


def _usage(owner: Owner) -> tuple[float, int] | None:
    """Return the CPU seconds and the resident bytes of a process; None if it has ended."""
    folder = Path("/proc", owner.pid)
    fields, pages = _stat(folder), _text(folder / "statm").split()
    if fields is None or fields[_STATE] == "Z" or fields[_START] != owner.start or not pages:
        return None
    seconds = (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
