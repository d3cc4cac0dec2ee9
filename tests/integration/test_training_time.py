"""The ledger in a real Prometheus: start points long before the pipeline, and increases of new activities."""

import json
from pathlib import Path

import pytest
from tests.integration.conftest import Prometheus, Python

# A process that has loaded its model for 50 minutes, and evaluates later on.
SCRIPT = """\
import json, threading
import monitel, monitel_otlp
from monitel.training import activities
from monitel.clock import since_boot_ns

pause = threading.Event().wait
activities._begin(since_boot_ns() - 3000 * 10**9, "process")
pipeline = monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool")
monitel.set_step(1)
pipeline.force_flush(30)
with monitel.activity("evaluation"):
    pause(0.5)
pipeline.force_flush(30)
pause(0.1)
pipeline.force_flush(30)
print(json.dumps(monitel.ledger().activities))
"""


def test_series_begin_at_zero(
    prometheus: Prometheus, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Prometheus that takes nothing out of order stores both kinds of start points, and its increase is the truth."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{prometheus.url}/api/v1/otlp/v1/metrics")
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = python("train.py")
    truth = {name: total_ns / 1e9 for name, total_ns in json.loads(ended.stdout).items()}
    series = prometheus.ask("query", query=f"training_time_seconds_total{prometheus.selector}[1h]")["result"]
    stored = {
        each["metric"]["training_activity"]: [(at, float(value)) for at, value in each["values"]] for each in series
    }
    assert {"startup", "step", "evaluation", "shutdown"} == set(stored)
    assert {0.0} == {values[0][1] for values in stored.values()}
    first_export = stored["startup"][1][0]
    assert 1800 == pytest.approx(first_export - stored["startup"][0][0])
    assert first_export <= stored["evaluation"][0][0] < stored["evaluation"][1][0] < first_export + 60
    for name in ("startup", "evaluation"):
        assert truth[name] == pytest.approx(stored[name][-1][1], abs=1e-6)
    begin, end = stored["evaluation"][0][0], stored["evaluation"][1][0]
    of = f'training_activity="evaluation", instance="{series[0]["metric"]["instance"]}"'
    query = f"increase(training_time_seconds_total{{{of}}}[{round((end - begin) * 1000) + 1}ms])"
    (found,) = prometheus.ask("query", query=query, time=end)["result"]
    assert truth["evaluation"] == pytest.approx(float(found["value"][1]), rel=0.05)
    (goodput,) = prometheus.query(f"last_over_time(training_goodput_ratio{prometheus.selector}[1h])")
    assert 0 < float(goodput) < 0.01
    assert "refused" not in ended.stderr
