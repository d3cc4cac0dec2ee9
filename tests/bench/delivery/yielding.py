"""A loop of 1 ms of Python beside an encoder that has 100,000 events to encode: how much longer an iteration takes."""

from __future__ import annotations

import tempfile
import time
from statistics import median, quantiles
from typing import TYPE_CHECKING

from race import optional
from row import Row

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

_ITERATIONS = 1_000
_EVENTS = 100_000
_RUNS = 3
_MOST_RATIO = 1.5


def p99(turns: int, goes_on: Callable[[], object] = lambda: True) -> float:
    """Return the 99th percentile of the iterations' durations, in ns, over as many as ``goes_on`` allows."""
    took: list[int] = []
    while len(took) < _ITERATIONS and goes_on():
        begin = time.perf_counter_ns()
        for _ in range(turns):
            pass
        took.append(time.perf_counter_ns() - begin)
    return quantiles(took, n=100)[98]


def turns_of_a_millisecond() -> int:
    """Return how often an empty loop turns in 1 ms."""
    begin = time.perf_counter_ns()
    for _ in range(1_000_000):
        pass
    return int(1e12 / (time.perf_counter_ns() - begin))


def main() -> None:
    """Compare a loop alone with one beside a full encoder."""
    what = "1 ms loop beside a full encoder, p99"
    otlp = optional("monitel_otlp")
    if otlp is None:
        Row(what, None).put()
        return
    turns = turns_of_a_millisecond()
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as folder, otlp.configure(spool_dir=folder, export_interval=3600.0) as pipeline:
        for _ in range(_RUNS):
            alone.append(p99(turns))
            for number in range(_EVENTS):
                monitel.emit("epoch", number=number, loss=0.25)
            pipeline.engine.wake()
            beside.append(p99(turns, lambda: pipeline.account()["logs"].waiting))
            pipeline.force_flush(60.0)
    ratio = median(one / other for one, other in zip(beside, alone, strict=True))
    Row(what, median(beside), "ns", "the loop alone", median(alone), ratio, most_ratio=_MOST_RATIO).put()


if __name__ == "__main__":
    main()
