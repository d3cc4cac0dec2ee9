"""10,000 idle Stats whose windows expire while a loop adds to another one: how long it stands still.

A standstill is the CPU time that the process spends between two turns of the loop: its other threads' time, without
what other processes take from all of them.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from row import Row

import monitel
import monitel_otlp
from monitel.stats.definition import TORCHS

_STATS = 10_000
_RUNS = 5  # after one in which all windows expire for the first time
_WINDOW = 0.5  # seconds
_TICK = 0.02  # more than one of the coarse clock, seconds
_MEDIAN_NS, _WORST_NS = 1e6, 3e6


def standstill(work: Callable[[], object]) -> int:
    """Add to a Stat while another thread is at ``work``; return the longest standstill, in ns."""
    own = monitel.stat("loop", window_size=1e9)
    thread = threading.Thread(target=work)
    thread.start()
    last, longest = time.process_time_ns(), 0
    while thread.is_alive():
        own.add(0.25)
        now = time.process_time_ns()
        longest = max(longest, now - last)
        last = now
    return longest


def one_run(pipeline: Any, idle: list[monitel.Stat]) -> tuple[int, int]:
    """Return the loop's standstill beside the pipeline, and beside nothing."""
    pipeline.force_flush(60.0)
    for stat in idle:
        stat.add(0.25)
    threading.Event().wait(_WINDOW + _TICK)  # all windows are expired; the export interval is longer

    def close() -> None:
        pipeline.force_flush(60.0)
        while any(stat.count for stat in idle):  # a round waits for event handlers for 1.5 s
            pipeline.force_flush(60.0)

    return standstill(close), standstill(lambda: threading.Event().wait(_WINDOW))


def main() -> None:
    """Five runs, offline: encoding and the spool, without a network."""
    with (
        tempfile.TemporaryDirectory() as folder,
        monitel_otlp.configure(spool_dir=folder, export_interval=3600.0) as pipeline,
    ):
        idle = [monitel.Stat(f"idle.{n}", TORCHS, _WINDOW) for n in range(_STATS)]
        runs = [one_run(pipeline, idle) for _ in range(1 + _RUNS)][1:]
    stalls, alone = zip(*runs, strict=True)
    what, peer = "10,000 windows expire: loop stands still", "the loop alone"
    Row(f"{what}, median", median(stalls), peer=peer, peer_value=median(alone), most=_MEDIAN_NS).put()
    Row(f"{what}, worst", max(stalls), peer=peer, peer_value=max(alone), most=_WORST_NS).put()


if __name__ == "__main__":
    main()
