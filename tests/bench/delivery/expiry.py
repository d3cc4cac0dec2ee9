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

from race import optional
from row import Row

import monitel
from monitel.stats.definition import TORCHS

_STATS = 10_000
_RUNS = 5
_WINDOW = 0.5  # seconds
_TICK = 0.02  # more than one of the coarse clock, seconds
_MEDIAN_NS, _WORST_NS, _TOGETHER_NS = 1e6, 3e6, 1e9


def loop_during(work: Callable[[], object]) -> tuple[int, int]:
    """Add to a Stat while another thread is at ``work``; the longest standstill and the whole time, in ns."""
    own = monitel.stat("loop", window_size=1e9)
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    begin, last, longest = time.perf_counter_ns(), time.process_time_ns(), 0
    while not done.is_set():
        own.add(0.25)
        now = time.process_time_ns()
        longest = max(longest, now - last)
        last = now
    thread.join()
    return longest, time.perf_counter_ns() - begin


def one_run(pipeline: Any, idle: list[monitel.Stat]) -> tuple[int, int, int]:
    """The loop's standstill beside the pipeline, how long that took, and the standstill beside nothing."""
    pipeline.force_flush(60.0)
    for stat in idle:
        stat.add(0.25)
    threading.Event().wait(_WINDOW + _TICK)  # all windows are expired; the export interval is longer

    def close() -> None:
        pipeline.force_flush(60.0)
        while any(stat.count for stat in idle):  # a round waits for event handlers for 1.5 s
            pipeline.force_flush(60.0)

    longest, together = loop_during(close)
    alone, _ = loop_during(lambda: threading.Event().wait(_WINDOW))
    return longest, together, alone


def main() -> None:
    """Five runs, offline: encoding and the spool, without a network."""
    otlp = optional("monitel_otlp")
    if otlp is None:
        Row("10,000 windows expire", None).put()
        return
    with tempfile.TemporaryDirectory() as folder, otlp.configure(spool_dir=folder, export_interval=3600.0) as pipeline:
        idle = [monitel.Stat(f"idle.{n}", TORCHS, _WINDOW) for n in range(_STATS)]
        (first, *_), *runs = [one_run(pipeline, idle) for _ in range(1 + _RUNS)]
    stalls, together, alone = zip(*runs, strict=True)
    what, peer = "10,000 windows expire: loop stands still", "the loop alone"
    ratio = median(stall / other for stall, other in zip(stalls, alone, strict=True))
    Row(f"{what}, median", median(stalls), peer=peer, peer_value=median(alone), ratio=ratio, most=_MEDIAN_NS).put()
    Row(f"{what}, worst", max(stalls), peer=peer, peer_value=max(alone), most=_WORST_NS).put()
    Row("10,000 windows expire for the first time: loop stands still", first).put()
    Row("10,000 windows expire: all closed and encoded", median(together), most=_TOGETHER_NS).put()


if __name__ == "__main__":
    main()
