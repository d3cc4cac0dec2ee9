"""Costs of the black box for the job: its adds and emits, its standstill during a cut, and the CPU time of cuts.

Each pair is measured in one run, with the box and without.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from race import optional, race, timed
from row import Row, report

import monitel
from monitel.aggregation import TORCHS
from monitel.open_windows import open_windows

if TYPE_CHECKING:
    from race import Contender

_ROUNDS = 41
_EMITS = 200  # a round
_CUT_STATS = 200
_CUTS = 8
_YIELDS = 4  # in a cut
_JOB_STATS = 50
_JOB_SECONDS = 12.0
_WARM_SECONDS = 2.0
_JOBS = 3  # of each kind
_STEP = 0.05  # seconds between two adds to each Stat of a job
_GIL_NS = 50e3
_CORE_SHARE = 0.0005
_MEMORY = Path("/dev/shm")


def _pipeline(folder: str, *, black_box: bool) -> Any:
    """Configure a pipeline, in the place of an earlier one."""
    otlp: Any = optional("monitel_otlp")
    return otlp.configure(
        spool_dir=folder, export_interval=3600.0, black_box=black_box, black_box_dir=Path(folder, "boxes")
    )


def calls() -> None:
    """Measure ``add`` and ``emit`` in turns: each round has a new pipeline, with the box or without."""
    stat = monitel.stat("loss", window_size=1e9)

    def prepared(folder: str, black_box: bool) -> dict[str, Any]:
        _pipeline(folder, black_box=black_box)
        monitel.emit("first")  # makes the box
        return {"stat": stat, "emit": monitel.emit, "range": range(_EMITS), "DATA": {"epoch": 3, "loss": 0.25}}

    def contenders(folder: str, code: str, calls: int | None) -> dict[str, Contender]:
        return {
            "monitel": timed(code, lambda: prepared(folder, True), calls),
            "without the box": timed(code, lambda: prepared(folder, False), calls),
        }

    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        costs = race(contenders(folder, "stat.add(0.25)", None), _ROUNDS)
        report("Stat.add, with the black box", costs, {"without the box": 1.1})
        costs = race(contenders(folder, "for _ in range: emit('epoch', DATA)", _EMITS), _ROUNDS)
        report("emit, with the black box", costs, {"without the box": None})


def cuts() -> None:
    """Measure the reading of the open windows, and how long a loop stands still during a cut."""
    idle = _turns_beside_an_idle_thread()
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder, _pipeline(folder, black_box=True) as pipeline:
        few = _longest_turns(pipeline, [monitel.Stat("only", TORCHS, 3600.0)])
        stats = [monitel.Stat(f"stat.{n}", TORCHS, 3600.0) for n in range(_CUT_STATS)]
        many = _longest_turns(pipeline, stats)
        costs = race({"monitel": timed("open_windows()", lambda: {"open_windows": open_windows})})
    report(f"read the open windows of {_CUT_STATS} Stats, without releasing the GIL", costs, {}, most=_GIL_NS)
    for what, turns in (("one Stat", few), (f"{_CUT_STATS} Stats", many)):
        Row(
            f"a loop stands still during a cut of {what}",
            median(turns),
            peer="while a thread only wakes up",
            peer_value=median(idle),
        ).put()


def _turns_beside_an_idle_thread() -> list[float]:
    """Return the longest turn of a loop each time that another thread wakes up, and releases the GIL some times."""
    during, over = threading.Event(), threading.Event()

    def wake() -> None:
        while not over.wait(1.0):
            during.set()
            for _ in range(_YIELDS):
                threading.Event().wait(1e-9)
            during.clear()

    thread = threading.Thread(target=wake)
    thread.start()
    longest = [_longest_turn(during, []) for _ in range(_CUTS)]
    over.set()
    thread.join()
    return longest


def _longest_turns(pipeline: Any, stats: list[monitel.Stat]) -> list[float]:
    """Return the longest turn of a loop during each of some cuts: the CPU time between two turns, in ns."""
    box, during = pipeline.engine.box, threading.Event()
    begin, end = box.beat, box.cut

    def beat() -> None:
        during.set()
        begin()

    def cut(made: object) -> object:
        try:
            return end(made)
        finally:
            during.clear()

    box.beat, box.cut = beat, cut
    longest = [_longest_turn(during, stats) for _ in range(_CUTS)]
    box.beat, box.cut = begin, end
    return longest[1:]  # the first one makes the box


def _longest_turn(during: threading.Event, stats: list[monitel.Stat]) -> float:
    for stat in stats:
        stat.add(0.25)
    end, last, longest = time.monotonic() + 1.1, time.process_time_ns(), 0
    while time.monotonic() < end:
        before = during.is_set()
        now = time.process_time_ns()
        if before or during.is_set():
            longest = max(longest, now - last)
        last = now
    return longest


def job(black_box: str) -> None:
    """Run a job that a test program has started: 50 Stats, and a sample for each of them twenty times a second."""
    otlp: Any = optional("monitel_otlp")
    stats = [monitel.Stat(f"stat.{n}", TORCHS, 60.0) for n in range(_JOB_STATS)]
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        otlp.configure(spool_dir=folder, black_box=black_box == "True", black_box_dir=Path(folder, "boxes"))
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
    calls()
    cuts()
    share()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(sys.argv[1])
    else:
        main()
