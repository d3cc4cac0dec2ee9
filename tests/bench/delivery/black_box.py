"""Costs of the black box for the job: its adds, its emits beside a busy thread, snapshots, and the CPU time of all."""

import marshal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from race import Contender, optional, race, timed
from row import Row, report

import monitel
from monitel.stats.definition import TORCHS

_ROUNDS = 41
_EMITS = 20_000  # beside a busy thread
_LATE_NS, _LATE_SHARE = 1e6, 0.01
_STATS = (50, 2000)  # in a snapshot
_SNAPSHOTS = 21
_SNAPSHOT_NS, _GIL_NS = 1e6, 0.3e6  # of 2,000 Stats
_JOB_STATS = 50
_JOB_SECONDS = 12.0
_WARM_SECONDS = 2.0
_JOBS = 3  # of each kind
_STEP = 0.05  # seconds between two adds to each Stat of a job
_CORE_SHARE = 0.0005
_MEMORY = Path("/dev/shm")
_DATA: dict[str, Any] = {"epoch": 3, "loss": 0.25, "phase": "train", "done": True, "path": "/checkpoints/17", "n": 7}


def _pipeline(folder: str, *, black_box: bool) -> Any:
    otlp: Any = optional("monitel_otlp")
    place = Path(folder, "boxes") if black_box else False
    return otlp.configure(spool_dir=folder, export_interval=3600.0, black_box=place)


def adds() -> None:
    """Measure ``add`` in turns: each round has a new pipeline, with the box or without."""
    stat = monitel.stat("loss", window_size=1e9)

    def contender(folder: str, *, black_box: bool) -> Contender:
        def prepared() -> dict[str, Any]:
            _pipeline(folder, black_box=black_box)
            monitel.emit("first")  # makes the box
            return {"stat": stat}

        return timed("stat.add(0.25)", prepared)

    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        contenders = {each: contender(folder, black_box=each == "monitel") for each in ("monitel", "without the box")}
        report("Stat.add, with the black box", race(contenders, _ROUNDS), {"without the box": 1.1})


def emits() -> None:
    """Measure how often an ``emit`` takes more than a millisecond, beside a thread that never waits."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder, _pipeline(folder, black_box=True):
        thread = threading.Thread(target=spin)
        thread.start()
        times = []
        for _ in range(_EMITS):
            begin = time.perf_counter_ns()
            monitel.emit("epoch", _DATA)
            times.append(time.perf_counter_ns() - begin)
        over.set()
        thread.join()
    Row("emit beside a busy thread, median", median(times)).put()
    late = sum(each > _LATE_NS for each in times) / _EMITS
    Row("emit beside a busy thread: share of those over 1 ms", late, unit="", most=_LATE_SHARE).put()


def snapshots() -> None:
    """Measure the CPU time of a snapshot, and its longest parts that do not release the GIL."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder, _pipeline(folder, black_box=True) as pipeline:
        monitel.emit("first")
        box = pipeline.engine.box
        for number in _STATS:
            stats = [monitel.Stat(f"{number}.{n}", TORCHS, 3600.0) for n in range(number)]
            whole, parts = [], []
            for _ in range(_SNAPSHOTS):
                for stat in stats:
                    stat.add(0.25)
                whole.append(_cpu_ns(box.snapshot))
                windows = box.open_windows()
                parts.append(max(_cpu_ns(box.open_windows), _cpu_ns(lambda: marshal.dumps(windows, 2))))  # noqa: B023
            many = number == max(_STATS)
            what = f"a snapshot of {number:,} Stats"
            Row(f"{what}: CPU", median(whole), most=_SNAPSHOT_NS if many else None).put()
            Row(f"{what}: longest hold of the GIL", median(parts), most=_GIL_NS if many else None).put()
            del stats


def _cpu_ns(work: Any) -> int:
    begin = time.thread_time_ns()
    work()
    return time.thread_time_ns() - begin


def job(black_box: str) -> None:
    """Run a job that a test program has started: 50 Stats, and a sample for each of them twenty times a second."""
    stats = [monitel.Stat(f"stat.{n}", TORCHS, 60.0) for n in range(_JOB_STATS)]
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder, _pipeline(folder, black_box=black_box == "True"):
        _add_for(_WARM_SECONDS, stats)
        begin = time.process_time()
        _add_for(_JOB_SECONDS, stats)
        sys.stdout.write(f"{1e9 * (time.process_time() - begin) / _JOB_SECONDS}\n")


def _add_for(seconds: float, stats: list[monitel.Stat]) -> None:
    end, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < end:
        pause.wait(_STEP)
        for stat in stats:
            stat.add(0.25)


def share() -> None:
    """Measure the CPU time of jobs side by side, half of them with a box."""
    jobs = [
        (black_box, subprocess.Popen([sys.executable, __file__, str(black_box)], stdout=subprocess.PIPE, text=True))
        for black_box in (True, False) * _JOBS
    ]
    used: dict[bool, list[float]] = {True: [], False: []}
    for black_box, process in jobs:
        used[black_box].append(float(process.communicate()[0]))
    per_second = median(used[True]) - median(used[False])
    Row(f"CPU time of the box in a second of a job with {_JOB_STATS} Stats", per_second, most=1e9 * _CORE_SHARE).put()


def main() -> None:
    """Measure all of it, on Linux with the OTLP exporter."""
    if optional("monitel_otlp") is None or not _MEMORY.is_dir():
        Row("black box", None).put()
        return
    adds()
    emits()
    snapshots()
    share()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(sys.argv[1])
    else:
        main()
