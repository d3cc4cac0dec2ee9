"""Counters, waits and the ledger in a real Prometheus: whole increases from zero."""

import json
from typing import Any

import pytest
from tests.integration.conftest import Prometheus
from tests.support.scripts import Run

# Everything is counted before the first export: the first sample of each series is its whole count.
SCRIPT = """\
import json, threading
from monitel.training import activities
from monitel.clock import since_boot_ns

activities._begin(since_boot_ns() - 3000 * 10**9, "process")  # it has loaded its model for 50 minutes
pause = threading.Event()
pipeline = monitel_otlp.configure(service_name="train", export_interval=0.5, spool_dir="spool")
samples = monitel.counter("training.samples", unit="{sample}")
loss = monitel.Stat("train.loss", [monitel.COUNT, monitel.SUM], 0.25)
loading = monitel.WaitCounter("data.loading")
for _ in range(60):  # without a pause: the first values are sent soon
    with loading.guard():
        pass
    samples.add(32)
    loss.add(0.5)
monitel.set_step(60)
pipeline.force_flush(30)
pause.wait(1.2)  # further samples of the same total
waited = monitel.wait_counters()["data.loading"]
print(json.dumps({"samples": samples.total, "steps": 60, "waited": waited.total, "longest": waited.max}))
"""


def check(prometheus: Prometheus, truth: dict[str, Any]) -> None:
    """Compare samples, and ``increase()`` over a window that begins and ends with a sample, with the truth."""
    for series, expected in (
        ("training_samples_total", truth["samples"]),
        ("train_loss_count_total", truth["steps"]),
        ("train_loss_sum", truth["steps"] * 0.5),
        ("data_loading_wait_count_total", truth["steps"]),
        ("data_loading_wait_time_seconds_total", truth["waited"]),
    ):
        stored = prometheus.samples(series)
        assert (0.0, expected) == (float(stored[0][1]), float(stored[-1][1])), series
        assert sorted(stored, key=lambda sample: (sample[0], float(sample[1]))) == stored
        first, last = stored[0][0], stored[-1][0]
        # A window that begins a millisecond before the first sample and ends at the last one leaves nothing to
        # extrapolate but this millisecond.
        query = f"increase({series}[{last - first + 1}ms])"
        (found,) = prometheus.get("query", query=query, time=last / 1000)["result"]
        assert expected == pytest.approx(float(found["value"][1]), rel=0.01), query
    assert [str(truth["steps"])] == prometheus.values("training_step")
    assert ["0"] == prometheus.values("data_loading_wait_active")
    startup = prometheus.samples('training_time_seconds_total{training_activity="startup"}')
    assert ("0", True) == (startup[0][1], float(startup[-1][1]) >= 3000)
    assert 1800 == pytest.approx((startup[1][0] - startup[0][0]) / 1000)  # an older one might be refused
    longest = max(float(sample) for _, sample in prometheus.samples("data_loading_wait_max_seconds"))
    assert truth["longest"] == longest


def test_increase_is_the_whole_count(prometheus: Prometheus, train: Run) -> None:
    """Sent to a Prometheus that takes nothing out of order, without a Collector."""
    check(prometheus, json.loads(train(SCRIPT, env=prometheus.variables).stdout))
