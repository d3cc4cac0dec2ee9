"""The recorded series of stages, compared with those of random jobs with known times."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from tests.integration.conftest import COMPOSE, eventually
from tests.integration.rules.drawn_jobs import RECORDED, drawn, recorded
from tests.integration.rules.test_rules import promtool, run
from tests.integration.stack.filling import store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.integration.rules.drawn_jobs import Process, Series
    from tests.integration.stack.filling import Store

__all__ = ["promtool"]

ATTRIBUTES = {
    "service_namespace": "service.namespace",
    "service_name": "service.name",
    "training_run_id": "training.run.id",
    "training_attempt": "training.attempt",
    "training_rank": "training.rank",
    "host_name": "host.name",
    "instance": "service.instance.id",
}
HOST, DEVICE = ("training_stage_duration_mean_seconds", "training_stage_device_duration_mean_seconds")


def text(name: str, labels: Any) -> str:
    """Return a series as promtool reads it."""
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels)) + "}"


def case(seed: int) -> dict[str, Any]:
    """Return a test for promtool of one random job. Windows last a minute; of the last ones a third has arrived."""
    processes = drawn(seed)
    inputs = []
    for number, process in enumerate(processes):
        for metric, times in ((HOST, process.host), (DEVICE, process.device)):
            for stage, seconds in times.items():
                value = repr(seconds).replace("nan", "NaN").replace("inf", "+Inf")
                values = [value] * (2 if process.ended else 9) + ["0.5"] * (number % 3 == 0 and not process.ended)
                labels = {**process.labels, "training_stage": stage}.items()
                inputs.append({"series": text(metric, labels), "values": " ".join(values)})
    checks = [
        {
            "expr": name,
            "eval_time": "9m",
            "exp_samples": [{"labels": text(name, labels), "value": value} for labels, value in series.items()],
        }
        for name, series in recorded(processes).items()
    ]
    return {"name": f"seed {seed}", "interval": "1m", "input_series": inputs, "promql_expr_test": checks}


def test_recorded_series_are_those_of_random_jobs(promtool: str, tmp_path: Path) -> None:
    """Each series of each rule has the value and the labels that the truth has, and there is no other one."""
    seeds = range(6)
    tests = {"rule_files": [str(COMPOSE / "stages.yml")], "evaluation_interval": "30s", "tests": list(map(case, seeds))}
    file = tmp_path / "stages.json"  # which is YAML
    file.write_text(json.dumps(tests))
    run(promtool, "test", "rules", file)


def test_prometheus_records_the_series_of_random_jobs(backends: Path, tmp_path: Path) -> None:
    """Windows that are sent as OTLP become these series, with labels from attributes of the resource."""
    processes = [process for seed in range(20) for process in drawn(seed)]
    expected = recorded(processes)
    assert all(len(series) > 20 for series in expected.values())
    with store(backends, tmp_path) as prometheus:
        write(prometheus, processes)

        def found() -> dict[str, Series]:
            return {name: read(prometheus, name) for name in RECORDED}

        eventually(lambda: expected == found(), "the rules record other series")


def write(prometheus: Store, processes: Sequence[Process]) -> None:
    """Write windows of two seconds, from some seconds ago until long after the test."""
    message = ExportMetricsServiceRequest()
    now_ns = time.time_ns()
    for process in processes:
        resource = message.resource_metrics.add()
        for label, value in process.labels.items():
            if label != "training_group":
                resource.resource.attributes.add(key=ATTRIBUTES[label]).value.string_value = value
        metrics = resource.scope_metrics.add().metrics
        for name, times in (
            ("training.stage.duration", process.host),
            ("training.stage.device.duration", process.device),
        ):
            points = metrics.add(name=f"{name}.mean", unit="s").gauge.data_points
            for second in range(-8, -5) if process.ended else range(-3, 60, 2):
                for stage, seconds in times.items():
                    point = points.add(time_unix_nano=now_ns + second * 10**9, as_double=seconds)
                    point.attributes.add(key="training.stage").value.string_value = stage
                    if group := process.labels.get("training_group"):
                        point.attributes.add(key="training.group").value.string_value = group
    request = urllib.request.Request(
        f"{prometheus.url}/api/v1/otlp/v1/metrics",
        message.SerializeToString(),
        {"Content-Type": "application/x-protobuf"},
    )
    urllib.request.urlopen(request, timeout=30).close()


def read(prometheus: Store, name: str) -> Series:
    """Return the current values of a recorded metric. The label ``job`` repeats two others."""
    return {
        frozenset((label, text) for label, text in each["metric"].items() if label not in {"__name__", "job"}): float(
            each["value"][1]
        )
        for each in prometheus.query(name)
    }
