"""Metrics that are not values of the training: exactly those of monitel's sources, and no similar name of a user."""

from __future__ import annotations

import pytest

from monitel_otel.names import WAITS
from monitel_otel.prometheus import stored_names
from monitel_otlp.compare.internal_metrics import internal_metrics
from monitel_otlp.system.metrics import HOST_METRICS, PROCESS_METRICS

SYSTEM = [*PROCESS_METRICS, *HOST_METRICS]
WAIT = ["data.loading.wait.time", "data.loading.wait.count", "data.loading.wait.active", "data.loading.wait.max"]
STORED_WAIT = [
    *("data_loading_wait_time_seconds_total", "data_loading_wait_count_total"),
    *("data_loading_wait_active", "data_loading_wait_max_seconds"),
]


@pytest.mark.parametrize(
    "name",
    [
        *("process.reward.mean", "process_reward_mean", "system.prompt.loss", "system_prompt_loss", "hw.loss"),
        *("queue.wait.seconds", "queue_wait_seconds", "queue.wait.count", "queue_wait_count_total"),
        *("queue.wait.max", "queue_wait_max", "training.time.to.loss", "training_time_to_loss"),
        *("training.goodput.mean", "training_goodput_mean"),
    ],
)
def test_value_with_a_similar_name_is_shown(name: str) -> None:
    """A user's metric is a value, even if its name begins or ends as one of monitel's metrics."""
    assert set() == internal_metrics([name, *WAIT, *STORED_WAIT, "process.cpu.time"]) & {name}


@pytest.mark.parametrize("names", [WAIT, STORED_WAIT])
def test_wait_counter_is_not_a_value(names: list[str]) -> None:
    """All four metrics of a wait counter are recognized, as monitel sends them and as Prometheus stores them."""
    assert set(names) == internal_metrics([*names, "loss"])
    assert len(WAITS) == len(names)


@pytest.mark.parametrize(
    "name",
    [
        *("training_time_seconds_total", "training_goodput_ratio", "monitel_queue_size"),
        *("hw_power_watts", "hw_temperature_celsius", "hw_gpu_utilization_ratio"),
        *("hw_gpu_memory_usage_bytes", "hw_gpu_memory_limit_bytes"),
        *("process_cpu_time_seconds_total", "process_memory_usage_bytes", "process_open_file_descriptor_count"),
        *("process_thread_count", "system_cpu_time_seconds_total", "system_memory_usage_bytes"),
        *("system_disk_io_bytes_total", "system_network_io_bytes_total", "process_disk_io_bytes_total"),
    ],
)
def test_metric_of_monitel_in_prometheus_is_not_a_value(name: str) -> None:
    """The names in Prometheus have units and endings."""
    assert {name} == internal_metrics([name])


def test_all_system_metrics_are_known() -> None:
    """Each metric that is observed for the process or the host is recognized."""
    assert set(SYSTEM) == internal_metrics(SYSTEM)
    stored = {stored_names(name, "", monotonic=False)[0] for name in SYSTEM}
    assert stored == internal_metrics(stored)
