"""``compare --prometheus`` with a real Prometheus: the same numbers as in the files of the runs, and as in the jobs."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import COMPOSE, free_port, prometheus_command, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.integration

SCRIPT = """\
import json, sys, threading
import monitel, monitel_otlp

name, first, last, rate = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
run = {"training.run.id": name, "training.rank": "0", "training.world_size": sys.argv[5]}
pipeline = monitel_otlp.configure(service_name="train", resource_attributes=run, spool_dir="runs")
monitel.config({"lr": rate, "layers": 4})
loss = monitel.stat("train.loss", [monitel.MEAN, monitel.COUNT], window_size=0.2, attributes={"split": "train"})
with monitel.activity("init"):
    threading.Event().wait(0.2)
for step in range(first, last + 1):
    monitel.set_step(step)
    loss.add(rate / (step + 1))
    monitel.counter("training.samples", unit="{sample}").add(8)
    threading.Event().wait(0.02)
monitel.log({"eval.accuracy": 1 - rate})
pipeline.shutdown(30)
print(json.dumps(monitel.ledger().activities))
"""


@pytest.fixture(params=["promoted", "target_info"])
def server(request: pytest.FixtureRequest, backends: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a Prometheus with the configuration that users run, or with labels in target_info only."""
    config = COMPOSE / "prometheus.yml"
    if request.param == "target_info":
        text = re.sub(r"\notlp:\n.*", "\n", config.read_text(), flags=re.DOTALL)
        assert "out_of_order_time_window" in text
        config = tmp_path / "prometheus.yml"
        config.write_text(re.sub(r"rule_files.*", "", text))
    url = f"http://127.0.0.1:{free_port()}"
    command = prometheus_command(backends, url, tmp_path, config)
    with running(*command, log=tmp_path / "prometheus.log", ready=f"{url}/-/ready"):
        yield url


def test_runs_in_prometheus_have_the_numbers_of_their_files(
    server: str, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, times, totals over two attempts, last values, world size and activities agree with two other sources."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{server}/api/v1/otlp/v1/metrics")
    (tmp_path / "train.py").write_text(SCRIPT)
    truth = json.loads(python("train.py", 'run "7"', 0, 19, 0.5, 2).stdout)
    python("train.py", "run-8", 0, 29, 0.25, 4)
    python("train.py", "run-8", 30, 39, 0.25, 4)

    def compared(*options: str) -> list[dict[str, Any]]:
        printed = python("-m", "monitel_otlp", "compare", 'run "7"', "run-8", "--json", *options).stdout
        return list(json.loads(printed)["runs"])

    there, here = compared("--prometheus", server), compared("--spool-dir", "runs")
    assert ['run "7"', "run-8"] == [each["run"] for each in there]
    assert [1, 2] == [each["attempts"] for each in there]
    for remote, local in zip(there, here, strict=True):
        for name in ("attempts", "last_step"):
            assert local[name] == remote[name], name
        assert local["goodput"] == pytest.approx(remote["goodput"], abs=0.05)
        assert unix(local["started"]) == pytest.approx(unix(remote["started"]), abs=2)
        assert local["duration_seconds"] == pytest.approx(remote["duration_seconds"], abs=2)
        assert local["attributes"]["training.world_size"] == remote["attributes"]["training_world_size"]
        stored = {prometheus_name(each): each["value"] for each in local["values"]}
        found = {(each["name"], str(each["attributes"])): each["value"] for each in remote["values"]}
        assert stored.keys() == found.keys()
        assert {name: pytest.approx(value) for name, value in stored.items()} == found
    assert 20 * 0.02 < there[0]["activities"]["step"] <= truth["step"] / 1e9
    assert truth["init"] / 1e9 == pytest.approx(there[0]["activities"]["init"], abs=1e-6)
    samples = [value_of(each, "training_samples_total") for each in there]
    assert [160.0, 320.0] == samples
    assert [0.5, 0.75] == [value_of(each, "eval_accuracy") for each in there]
    unknown = python("-m", "monitel_otlp", "compare", "run-8", "run-9", "--prometheus", server, returncode=1)
    assert f"there is no run 'run-9' in {server}; the runs are\n  'run \"7\"'\n  'run-8'\n" in unknown.stderr


def test_run_of_hours_ago_is_found(server: str, python: Python) -> None:
    """A run whose last sample is older than what an instant query returns, with its times."""
    now_s = time.time()
    for run, hours in (("run-7", 5.0), ("run-8", 2.5)):
        post(server, run, now_s - 3600 * hours)
    printed = python("-m", "monitel_otlp", "compare", "run-7", "run-8", "--prometheus", server, "--days", "1", "--json")
    first, second = json.loads(printed.stdout)["runs"]
    assert [400.0, 400.0] == [first["duration_seconds"], second["duration_seconds"]]
    assert now_s - 3600 * 5 == pytest.approx(unix(first["last_seen"]), abs=0.002)
    assert now_s - 3600 * 2.5 - 400 == pytest.approx(unix(second["started"]), abs=0.002)
    assert 0.25 == value_of(first, "eval_loss")


def post(server: str, run: str, last_s: float) -> None:
    """Send the metrics of a run of 400 s that has ended at this Unix time: points each minute."""
    from monitel_otlp.messages.request import REQUESTS

    message = REQUESTS["metrics"]()
    resource = message.resource_metrics.add()
    named = {"service.name": "train", "service.instance.id": f"of {run}", "training.run.id": run, "training.rank": "0"}
    for name, value in named.items():
        resource.resource.attributes.add(key=name).value.string_value = value
    metrics = resource.scope_metrics.add().metrics
    total, loss = metrics.add(name="training.time", unit="s"), metrics.add(name="eval.loss")
    total.sum.aggregation_temporality, total.sum.is_monotonic = 2, True
    for before_s in range(360, -1, -60):
        at_ns = int((last_s - before_s) * 1e9)
        point = total.sum.data_points.add(time_unix_nano=at_ns, as_double=400.0 - before_s)
        point.attributes.add(key="training.activity").value.string_value = "step"
        loss.gauge.data_points.add(time_unix_nano=at_ns, as_double=0.25 + before_s)
    request = urllib.request.Request(f"{server}/api/v1/otlp/v1/metrics", message.SerializeToString())
    request.add_header("Content-Type", "application/x-protobuf")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def unix(text: str) -> float:
    """Return a time as Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def prometheus_name(value: dict[str, Any]) -> tuple[str, str]:
    """Return the name and attributes that Prometheus gives to a value."""
    total = "_total" if value["name"].endswith((".count", ".samples")) else ""
    attributes = {name.replace(".", "_"): each for name, each in value["attributes"].items()}
    return value["name"].replace(".", "_") + total, str(attributes)


def value_of(run: dict[str, Any], name: str) -> float:
    """Return the only value with a name."""
    (found,) = [each["value"] for each in run["values"] if each["name"] == name]
    return float(found)
