"""Four threads that add to one Stat: what an add costs then, and whether every sample is in."""

from __future__ import annotations

import threading
import time
from itertools import repeat
from typing import TYPE_CHECKING

from peers import prometheus_summary, torch_stat
from race import race, twin
from row import Row, report

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

    from race import Contender

_THREADS = 4
_SAMPLES = 30_000  # by each thread, a round
_ROUNDS = 15


def in_threads(add: Callable[[float], object]) -> Contender:
    """A contender that has four threads call ``add``; ns per call over all of them."""

    def work(start: threading.Barrier) -> None:
        start.wait()
        for _ in repeat(None, _SAMPLES):
            add(0.25)

    def one_round() -> float:
        start = threading.Barrier(_THREADS + 1)
        threads = [threading.Thread(target=work, args=(start,)) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        start.wait()
        begin = time.perf_counter_ns()
        for thread in threads:
            thread.join()
        return (time.perf_counter_ns() - begin) / (_THREADS * _SAMPLES)

    return one_round


def main() -> None:
    """Measure, then count."""
    stat = monitel.stat("loss", window_size=1e9)
    samples: list[float] = []
    contenders = {"monitel": in_threads(stat.add), "list.append": in_threads(samples.append)}
    if torchs := torch_stat("loss"):
        contenders["torch.monitor Stat.add"] = in_threads(torchs.add)
    if summary := prometheus_summary():
        contenders["prometheus_client Summary.observe"] = in_threads(summary.observe)
    peers = dict.fromkeys(("list.append", "torch.monitor Stat.add", "prometheus_client Summary.observe"))
    costs = race(contenders, _ROUNDS)
    report(f"Stat.add by 4 threads, {twin()}", costs, peers)
    lost = (_ROUNDS + 1) * _THREADS * _SAMPLES - stat.count  # one round is the warm-up
    Row(f"samples that 4 threads lost, {twin()}", abs(lost), unit="", most=0).put()


if __name__ == "__main__":
    main()
