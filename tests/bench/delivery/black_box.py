"""Costs of the black box for the job: emits beside a busy thread, and snapshots."""

import marshal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from row import Row

import monitel
import monitel_otlp
from monitel.stats.definition import TORCHS

_EMITS = 20_000
_LATE_NS, _LATE_SHARE = 1e6, 0.01
_STATS = 2000
_SNAPSHOTS = 21
_SNAPSHOT_NS, _GIL_NS = 1e6, 0.3e6
_DATA: dict[str, Any] = {"epoch": 3, "loss": 0.25, "phase": "train", "done": True, "path": "/checkpoints/17", "n": 7}


def emits() -> None:
    """Measure how often an ``emit`` takes more than a millisecond, beside a thread that never waits."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    times = []
    for _ in range(_EMITS):
        begin = time.perf_counter_ns()
        monitel.emit("epoch", _DATA)
        times.append(time.perf_counter_ns() - begin)
    over.set()
    thread.join()
    late = sum(each > _LATE_NS for each in times) / _EMITS
    Row("emit beside a busy thread: share of those over 1 ms", late, unit="", most=_LATE_SHARE).put()


def snapshots(box: Any) -> None:
    """Measure the CPU time of a snapshot, and its longest parts that do not release the GIL."""
    stats = [monitel.Stat(f"loss.{n}", TORCHS, 3600.0) for n in range(_STATS)]
    whole, parts = [], []
    for _ in range(_SNAPSHOTS):
        for stat in stats:
            stat.add(0.25)
        whole.append(cpu_ns(box.snapshot))
        opened = box.open_windows()
        windows = box.numbered(opened)
        works = box.open_windows, lambda: box.numbered(opened), lambda: marshal.dumps(windows, 2)  # noqa: B023
        parts.append(max(map(cpu_ns, works)))
    what = f"a snapshot of {_STATS:,} Stats"
    Row(f"{what}: CPU", median(whole), most=_SNAPSHOT_NS).put()
    Row(f"{what}: longest hold of the GIL", median(parts), most=_GIL_NS).put()


def cpu_ns(work: Callable[[], object]) -> int:
    begin = time.thread_time_ns()
    work()
    return time.thread_time_ns() - begin


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        settings: dict[str, Any] = {"export_interval": 3600.0, "black_box": Path(folder, "boxes")}
        with monitel_otlp.configure(spool_dir=folder, **settings) as pipeline:
            emits()
            assert pipeline.engine is not None
            snapshots(pipeline.engine.box)


if __name__ == "__main__":
    main()
