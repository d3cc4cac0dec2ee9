"""Delta temporality and the Collector's processor ``deltatocumulative``: the totals in Prometheus are exact."""

import json
from pathlib import Path

import pytest
from tests.integration.conftest import Prometheus, free_port
from tests.integration.services import Program
from tests.support.inbox import TEMPORALITY
from tests.support.scripts import Run

COLLECTOR = """\
receivers:
  otlp:
    protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}
processors:
  deltatocumulative:
exporters:
  otlp_http:
    endpoint: {prometheus}/api/v1/otlp
    sending_queue: {{enabled: false}}
    retry_on_failure: {{enabled: false}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], processors: [deltatocumulative], exporters: [otlp_http]}}
"""

SCRIPT = """\
import json, random, threading

rng, pause, sums, counts = random.Random(5), threading.Event(), {"loss": 0.0, "tokens": 0.0}, {"loss": 0, "tokens": 0}
with monitel_otlp.configure(service_name="train", distributions="both", export_interval=0.2) as pipeline:
    tokens = monitel.Stat("tokens", list(monitel.Aggregation), 0.02, monotonic=True)
    loss = monitel.Stat("loss", list(monitel.Aggregation), 0.02)
    for step in range(300):
        for stat, value in ((tokens, rng.randrange(900) / 8), (loss, rng.randrange(-80, 80) / 8)):
            stat.add(value)
            sums[stat.name] += value
            counts[stat.name] += 1
        pause.wait(0.002)
        if step % 100 == 99:
            assert pipeline.force_flush(60)
    monitel.flush()
    values = {stat.name: {str(each.suffix): value for each, value in stat.get().items()} for stat in (loss, tokens)}
print(json.dumps([sums, counts, values]))
"""


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_totals_of_deltas_are_exact(
    backends: Path, prometheus: Prometheus, train: Run, tmp_path: Path, preference: str
) -> None:
    """Counts, sums and histograms are those of all samples, and each gauge is that of the last window."""
    program = backends / "otelcol-contrib"
    if not program.exists():
        pytest.skip(f"no Collector with deltatocumulative: put the program otelcol-contrib into {backends}")
    url = f"http://127.0.0.1:{free_port()}"
    config = tmp_path / "collector.yaml"
    config.write_text(COLLECTOR.format(port=url.rpartition(":")[2], prometheus=prometheus.url))
    variables = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{url}/v1/metrics", TEMPORALITY: preference}
    with Program([program, f"--config={config}"], tmp_path / "collector.log", f"{url}/"):
        sums, counts, values = json.loads(train(SCRIPT, env=variables).stdout)
    for name, total in (("loss", "loss_sum"), ("tokens", "tokens_sum_total")):
        assert [str(counts[name])] == prometheus.values(f"{name}_count_total")
        assert [sums[name]] == [float(value) for value in prometheus.values(total)]
        assert [str(counts[name])] == prometheus.values(f"histogram_count({name}_histogram)")
        for suffix in ("mean", "min", "max", "value", "stddev"):
            assert [values[name][suffix]] == [float(value) for value in prometheus.values(f"{name}_{suffix}")]
        assert len(prometheus.samples(f"{name}_mean")) > 5
        assert len(prometheus.samples(f"{name}_mean")) == len(prometheus.samples(f"{name}_count_total"))
