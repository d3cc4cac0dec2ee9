"""64 simulated ranks as a digest, through the official Collector into Prometheus: series counted by queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from exporters.otlp.tests.receiver import Receiver

    from .conftest import Collector, Prometheus

    Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.integration

RANKS, STATS, WINDOWS = 64, 4, 4
STEPS = 10  # in a window, of a healthy rank


def test_64_ranks_are_tens_of_series(
    collector: Collector, prometheus: Prometheus, receiver: Receiver, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples are counted; the slow rank is in a log record within its first two windows, and in no label."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    with collector.run():
        command = ("-m", "monitel_otlp", "simulate", "--digest", "--ranks", RANKS, "--stats", STATS)
        done = python(*command, "--windows", WINDOWS, "--window", 2, "--endpoint", collector.url)
    slow = re.search(r"^slow +rank (\d+)", done.stdout, re.MULTILINE)
    assert slow

    def number(query: str) -> float:
        (found,) = prometheus.query(query)
        return float(found)

    job = '{job="monitel-simulate"}'
    series = number(f"count(last_over_time({job}[1h]))")
    assert STATS * (6 + 5) < series < 100
    assert 1 == number(f"count(count by (instance) (last_over_time({job}[1h])))")
    samples = number(f"sum(last_over_time(step_time_count_total{job}[1h]))")
    healthy = (RANKS - 1) * WINDOWS * STEPS
    assert pytest.approx(healthy + WINDOWS * STEPS / 2.5, rel=0.05) == samples
    assert RANKS == number(f"max_over_time(step_time_ranks_count{job}[1h])")
    slowest = number(f"max_over_time(step_time_ranks_max_seconds{job}[1h])")
    assert pytest.approx(2.5, rel=0.15) == slowest / number(f"avg_over_time(step_time_ranks_p50_seconds{job}[1h])")
    (straggler,) = receiver.records("training.straggler")
    assert int(slow[1]) == straggler.attributes["rank"]
    assert straggler.attributes["training.step"] <= 2 * STEPS / 2.5
    slowest_ranks = [record.attributes["rank"] for record in receiver.records("training.slowest")]
    assert WINDOWS - 1 <= slowest_ranks.count(int(slow[1]))  # not in the first, where it had not begun
