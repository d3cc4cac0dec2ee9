"""Aggregates over 64 ranks, by queries and by the rules of the stack, against those computed from all samples.

One rank delivers only after the end of the run, and a window of another rank is replayed then. A second stands for a
minute. The windows of all other ranks are sent before their times come, so that the load of the machine changes no
result.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

import pytest
from tests.integration.conftest import eventually
from tests.integration.services import sixty_times_faster
from tests.integration.stack.filling import Store, store

import monitel
from monitel.testing import ManualClock

RANKS, WINDOWS = 64, 6
LATE = 17  # delivers after the run
REPLAYED = (23, 2)  # rank and window, delivered after the run
AGGREGATIONS = [monitel.MEAN, monitel.COUNT, monitel.SUM, monitel.MIN, monitel.MAX]
SECOND_NS = 1_000_000_000

#: Queries of docs/how-to/many-ranks.md, here for all samples of one window, and for the ranks' means of one window.
QUERIES = {
    "samples_count": "sum(step_time_count_total - step_time_count_total offset 1m)",
    "samples_sum": "sum(step_time_sum_seconds - step_time_sum_seconds offset 1m)",
    "samples_mean": "sum(step_time_sum_seconds - step_time_sum_seconds offset 1m)"
    " / sum(step_time_count_total - step_time_count_total offset 1m)",
    "samples_min": "min(step_time_min_seconds)",
    "samples_max": "max(step_time_max_seconds)",
    "means_count": "count(step_time_mean_seconds)",
    "means_min": "min(step_time_mean_seconds)",
    "means_median": "quantile(0.5, step_time_mean_seconds)",
    "means_p99": "quantile(0.99, step_time_mean_seconds)",
    "means_max": "max(step_time_mean_seconds)",
}


def aggregated(latest: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the truth: all aggregates, from samples.

    Args:
        latest: For each rank the samples of its latest window.
        new: For each rank the samples that came within the last minute.
    """
    means = [fmean(samples) for samples in latest]
    fresh = [sample for samples in new for sample in samples]
    return {
        "samples_count": len(fresh),
        "samples_sum": math.fsum(fresh),
        "samples_mean": fmean(fresh),
        "samples_min": min(map(min, latest)),
        "samples_max": max(map(max, latest)),
        "means_count": len(means),
        "means_min": min(means),
        "means_median": median(means),
        "means_p99": quantiles(means, n=100, method="inclusive")[-1],
        "means_max": max(means),
    }


@dataclass(frozen=True)
class Run:
    """Samples and requests of a run."""

    name: str  # its id
    begin_ns: int  # begin of the first window, Unix ns
    samples: list[list[list[float]]]  # the samples of each rank in each window
    requests: list[list[bytes]]  # the request of each rank for each window

    def end(self, window: int) -> float:
        """Return the end of a window, Unix seconds."""
        return self.begin_ns / 1e9 + window + 1

    def ask(self, prometheus: Store, query: str, window: int) -> float:
        of_run = re.sub(r"step_time_\w+", rf'\g<0>{{training_run_id="{self.name}"}}', sixty_times_faster(query))
        (found,) = prometheus.get("query", query=of_run, time=str(self.end(window)))["result"]
        return float(found["value"][1])

    def recorded_truth(self, now: float) -> dict[str, float]:
        """Return the aggregates that rules can record at this time: of the windows that were there 15 s before."""
        seen = math.floor(now - 0.25 - self.begin_ns / 1e9)  # complete windows
        latest, new = [], []
        for rank, windows in enumerate(self.samples):
            if rank == LATE:
                continue
            at, before = (
                max(window for window in range(count) if (rank, window) != REPLAYED) for count in (seen, seen - 1)
            )
            latest.append(windows[at])
            new.append([sample for window in windows[before + 1 : at + 1] for sample in window])
        return aggregated(latest, new)


def make_run(lead: int) -> Run:
    """Return a run, recorded by Stats, that begins after so many seconds."""
    from tests.integration.nightly.rank_requests import RankRequests

    rng = random.Random(7)
    name, begin_ns = f"run-{lead}", (int(time.time()) + lead) * SECOND_NS
    samples = [
        [[rng.lognormvariate(-2, 0.5) for _ in range(rng.randint(1, 12))] for _ in range(WINDOWS)] for _ in range(RANKS)
    ]
    requests = []
    for rank, windows in enumerate(samples):
        encoder = RankRequests(rank, RANKS, name, begin_ns)
        with monitel.testing.capture_events() as events, ManualClock(begin_ns) as clock:
            stat = monitel.Stat("step.time", AGGREGATIONS, 1.0, unit="s")
            for window in windows:
                for sample in window:
                    stat.add(sample)
                clock.advance(1)
            stat.flush()
        closed = [event.window for event in events if event.window is not None]
        assert WINDOWS == len(closed)
        requests.append([body for window in closed for body in encoder.encode([window])])
    return Run(name, begin_ns, samples, requests)


@pytest.fixture(scope="module")
def prometheus(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with store(backends, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


def recorded(prometheus: Store, run: Run, name: str) -> dict[float, float]:
    found = prometheus.query(f'training:ranks:{name}{{training_run_id="{run.name}"}}[1m]')
    assert 1 == len(found), (name, found)
    labels = {"stat": "step_time", "service_name": "train", "training_run_id": run.name, "training_attempt": "0"}
    assert labels.items() <= found[0]["metric"].items()
    assert not {"instance", "training_rank", "host_name"} & set(found[0]["metric"])
    return {at: float(value) for at, value in found[0]["values"]}


def test_aggregates_over_ranks_are_exact(prometheus: Store) -> None:
    """Rules are exact for what has arrived; queries are exact for all, including what has arrived late."""
    pytest.importorskip("monitel_otlp")
    from tests.integration.nightly.rank_requests import send

    late = {(LATE, window) for window in range(WINDOWS)} | {REPLAYED}
    in_time = [(rank, window) for window in range(WINDOWS) for rank in range(RANKS) if (rank, window) not in late]
    for lead in (4, 12, 36):  # seconds: enough for a machine of any load
        run = make_run(lead)
        send(prometheus.url, (run.requests[rank][window] for rank, window in in_time))
        if time.time() < run.end(0):
            break
    eventually(lambda: time.time() > run.end(WINDOWS - 1) + 1.5, "end of the run")

    before = {name: recorded(prometheus, run, name) for name in QUERIES}
    compared = 0
    for name, values in before.items():
        for at, value in values.items():
            # The first two windows have no window before, and after the end nothing is new.
            if run.end(1) + 0.25 < at < run.end(WINDOWS - 1) + 0.25 and at - 1 in before["means_count"]:
                assert pytest.approx(run.recorded_truth(at)[name], rel=1e-9) == value, (name, at)
                compared += 1
    assert compared > 2 * len(QUERIES)

    send(prometheus.url, (run.requests[rank][window] for rank, window in sorted(late)))
    for window in range(WINDOWS):
        samples = [windows[window] for windows in run.samples]
        found = {name: run.ask(prometheus, query, window) for name, query in QUERIES.items()}
        truth = aggregated(samples, samples)
        assert truth == pytest.approx(found, rel=1e-9), window
    for name, values in before.items():
        after = recorded(prometheus, run, name)
        assert values == {at: after[at] for at in values}
