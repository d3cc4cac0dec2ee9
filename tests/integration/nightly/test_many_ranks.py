"""64 simulated ranks, the official Collector and Prometheus: counted by queries, and what is to be found, found."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.integration.conftest import Collector, Prometheus

    Python = Callable[..., subprocess.CompletedProcess[str]]

RANKS, STATS, WINDOWS = 64, 50, 10
STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")
NUMBERS, EVENTS = 4, 2  # of a rank in each window
BY_RANK = "* on (job, instance) group_left (training_rank) target_info"  # where it is not promoted


@pytest.fixture
def query(prometheus: Prometheus) -> Callable[[str], dict[str, float]]:
    """Ask Prometheus; the answer's values by their rank."""

    def query(text: str) -> dict[str, float]:
        asked = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/query?{asked}", timeout=30) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return {each["metric"].get("training_rank", ""): float(each["value"][1]) for each in result}

    return query


def stage_mean(stage: str) -> str:
    """Return a query of the mean time of a stage on each rank."""
    return f'avg_over_time(training_stage_duration_mean_seconds{{training_stage="{stage}"}}[1h])'


def test_64_ranks_are_stored_window_by_window(
    collector: Collector, query: Callable[[str], dict[str, float]], python: Python
) -> None:
    """Every window of every Stat of every rank is there once; the late rank and the NaN are found by PromQL."""
    with collector.run():
        command = ("-m", "monitel_otlp", "simulate", "--ranks", RANKS, "--stats", STATS, "--windows", WINDOWS)
        done = python(*command, "--endpoint", collector.url)
    items = STATS + len(STAGES) + NUMBERS + EVENTS
    assert f"{RANKS * items * WINDOWS + 1:,} acknowledged, 0 on disk, 0 dropped" in done.stdout
    late = re.search(r"^late +rank (\d+): (\w+), 30 ms a step$", done.stdout, re.MULTILINE)
    sick = re.search(r"^NaN +rank (\d+)", done.stdout, re.MULTILINE)
    assert late
    assert sick

    each_rank = {str(rank): 1.0 for rank in range(RANKS)}
    assert each_rank == query(f"target_info {BY_RANK}")
    named = dict.fromkeys(("loss", "step_time", "gradient_norm"), 1)
    for stat, series in {**named, "layer_gradient_norm": STATS - len(named)}.items():
        windows = f"sum by (job, instance) (count_over_time({stat}_count_total[1h]))"
        expected = {rank: float((WINDOWS + 1) * series) for rank in each_rank}  # and a start point
        assert expected == query(f"{windows} {BY_RANK}"), stat
    assert 1 == len(set(query(f"step_time_count_total {BY_RANK}").values()))  # all ranks make the same steps
    stages = {stage: query(f"{stage_mean(stage)} {BY_RANK}") for stage in STAGES}
    above = [
        (mean - median(means.values()), rank, stage)
        for stage, means in stages.items()
        for rank, mean in means.items()
        if stage != "sync"
    ]
    first = max(above)
    assert (late[1], late[2]) == first[1:]
    assert pytest.approx(0.03, rel=0.05) == first[0]
    assert [late[1]] == list(query(f"bottomk(1, {stage_mean('sync')}) {BY_RANK}"))
    steps = query(f"step_time_sum_seconds / ignoring (__name__) step_time_count_total {BY_RANK}")
    assert {rank: pytest.approx(sum(means[rank] for means in stages.values()), rel=0.02) for rank in steps} == steps
    sums = query(f"sum_over_time(loss_mean[1h]) {BY_RANK}")
    assert [sick[1]] == [rank for rank, value in sums.items() if math.isnan(value)]
    assert query(f"step_time_count_total {BY_RANK}") == query(f"data_loading_wait_count_total {BY_RANK}")
    samples = query(f"training_samples_total {BY_RANK}")
    assert {rank: 8 * steps for rank, steps in query(f"step_time_count_total {BY_RANK}").items()} == samples
    assert {rank: float(WINDOWS) for rank in each_rank} == query(f"count_over_time(eval_loss[1h]) {BY_RANK}")
