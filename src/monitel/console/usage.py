"""CPU time and memory of processes from ``/proc``, and of GPUs where nvidia-ml-py is installed."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel.runs.process import Process


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
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] == b"Z" or fields[19] != start.encode():
            return None
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _gpus(nvml: Any) -> dict[int, tuple[float | None, int | None]]:
    """Return the usage of GPUs by process id. What a GPU does not answer, as with MIG, is None."""
    shares: dict[int, list[float]] = {}
    sizes: dict[int, list[int]] = {}
    for index in range(_answer(nvml.nvmlDeviceGetCount) or 0):
        gpu = _answer(nvml.nvmlDeviceGetHandleByIndex, index)
        rates = _answer(nvml.nvmlDeviceGetUtilizationRates, gpu)
        for process in _answer(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ():
            shares.setdefault(process.pid, []).extend([] if rates is None else [rates.gpu / 100])
            sizes.setdefault(process.pid, []).extend([process.usedGpuMemory or 0])
    return {pid: (max(shares[pid], default=None), sum(sizes[pid]) or None) for pid in sizes}


def _answer(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except Exception:  # the kinds of errors differ with the version
        return None
