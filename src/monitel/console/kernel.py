"""A process that runs, from outside: its state in the kernel, why it has no heartbeat, its stacks, and what it uses.

Only files that any process of the user may read are used.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import text_of
from monitel.blackbox.record import STACKS_NOW, STACKS_WANTED
from monitel.process.os_threads import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monitel.runs.process import Process

_BUSY = 0.2  # cores
_BUSY_BESIDE_OTHERS = 0.05  # cores, of a thread that always waits for one; a thread that waits for the GIL takes less
_THREADS = 512  # beyond, threads are not looked at
_STATE, _UTIME, _STIME, _START = 0, 11, 12, 19  # fields of /proc/PID/stat behind the name
_STACKS_PAUSE_S = 0.02


class KernelState(NamedTuple):
    """State of a process in the kernel.

    The letter is that of the main thread: R running, S sleeping, D waiting for I/O that cannot be interrupted, T
    stopped, t stopped by a debugger.
    """

    letter: str
    waiting_in: str  # the kernel function in which the main thread sleeps; empty if it runs, or if that is secret
    threads: Counter[str]  # by state
    cpu_ns: int  # of all threads so far
    tracer: int  # process that traces it; 0 if there is none
    stuck: tuple[str, ...] = ()  # kernel functions in which threads of state D wait


def kernel_state(pid: str, start: str, proc: Path = Path("/proc")) -> KernelState | None:
    """Return the state of the process that has started at these ticks since the boot.

    It is None if that has ended, and another process perhaps has its id, or if there is no /proc.
    """
    folder = proc / pid
    fields = _stat(folder) if pid.isdecimal() else None
    if fields is None or fields[_START] != start:
        return None
    tasks = []
    with suppress(OSError):
        tasks = [folder / "task" / name for name in sorted(os.listdir(folder / "task"))[:_THREADS]]  # noqa: PTH208  only names are needed
    states = [(task, each[_STATE]) for task in tasks if (each := _stat(task)) is not None]
    stuck = {_text(task / "wchan") or "an unknown place" for task, state in states if state == "D"}
    cpu_ns = (int(fields[_UTIME]) + int(fields[_STIME])) * 10**9 // os.sysconf("SC_CLK_TCK")
    tracer = re.search(r"^TracerPid:\s*(\d+)", _text(folder / "status"), re.MULTILINE)
    threads = Counter(state for _, state in states)
    traced_by = int(tracer[1]) if tracer else 0
    return KernelState(fields[_STATE], _text(folder / "wchan"), threads, cpu_ns, traced_by, (*sorted(stuck),))


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
    with suppress(OSError):
        status = box.status(STACKS_NOW)
        return status.st_ino, status.st_mtime_ns
    return None


# ---- what processes use


class UsageMeter:
    """Reads the usage of processes again and again. What is missing is None, and never an error."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[float, float]] = {}
        self._nvml: Any = None
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # it is not installed, or without a driver
            self._nvml = None

    def read(self, processes: Iterable[Process]) -> list[Process]:
        """Return processes; those that run with the resources that they use. CPU time needs a previous reading."""
        gpus = {} if self._nvml is None else _gpus(self._nvml)
        found, now = [], {}
        for process in processes:
            pid, _, start = process.key.partition("-")
            if not process.runs or (used := _of_process(pid, start)) is None:
                found.append(process)
                continue
            cpu_s, memory = used
            now[process.box] = time.monotonic(), cpu_s
            before_s, before_cpu_s = self._before.get(process.box, now[process.box])
            seconds = now[process.box][0] - before_s
            cpu = (cpu_s - before_cpu_s) / seconds if seconds else None
            gpu, gpu_memory = gpus.get(int(pid), (None, None))
            found.append(process.but(cpu=cpu, memory=memory, gpu=gpu, gpu_memory=gpu_memory))
        self._before = now
        return found


def _of_process(pid: str, start: str) -> tuple[float, int] | None:
    """Return the CPU seconds and the resident bytes of a process that began at these ticks; None if it has ended."""
    folder = Path("/proc", pid)
    fields, pages = _stat(folder), _text(folder / "statm").split()
    if fields is None or fields[_STATE] == "Z" or fields[_START] != start or not pages:
        return None
    seconds = (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(pages[1]) * os.sysconf("SC_PAGE_SIZE")


def _gpus(nvml: Any) -> dict[int, tuple[float | None, int | None]]:
    """Return the usage of GPUs by process id. What a GPU does not answer, as with MIG, is None."""
    shares: dict[int, list[float]] = {}
    sizes: dict[int, list[int]] = {}
    for index in range(_ask(nvml.nvmlDeviceGetCount) or 0):
        gpu = _ask(nvml.nvmlDeviceGetHandleByIndex, index)
        rates = _ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        for process in _ask(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ():
            shares.setdefault(process.pid, []).extend([] if rates is None else [rates.gpu / 100])
            sizes.setdefault(process.pid, []).extend([process.usedGpuMemory or 0])
    return {pid: (max(shares[pid], default=None), sum(sizes[pid]) or None) for pid in sizes}


def _ask(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except Exception:  # the kinds of errors differ with the version
        return None
