"""Distributions and a real Prometheus: its quantiles of what was sent are those of the samples."""

import json
from typing import Any

import pytest
from tests.integration.conftest import Prometheus
from tests.support.scripts import Run

QS = (0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999)

RUN = """\
import json, random

distributions, negative = json.loads(sys.argv[1])
rng = random.Random(20)
samples = []
with monitel_otlp.configure(service_name="train", distributions=distributions) as pipeline:
    stat = monitel.Stat("step.time", [monitel.HISTOGRAM, monitel.COUNT, monitel.STDDEV], 60.0, unit="s")
    for spread in (0.05, 0.3, 1.0):
        for _ in range(3000):
            samples.append(rng.lognormvariate(-1, spread) * (-1 if negative and rng.random() < 0.3 else 1))
            stat.add(samples[-1])
        stat.flush()
        assert pipeline.force_flush(60)
    print(json.dumps([samples, stat.quantile(0.99), monitel.Histogram.of(samples).scale]))
assert not pipeline.dropped, pipeline.dropped
"""


def sent(train: Run, prometheus: Prometheus, distributions: str, *, negative: bool = False) -> Any:
    """Three windows of 3,000 samples each: the samples, the last window's p99, and the scale of all."""
    return json.loads(train(RUN, json.dumps([distributions, negative]), env=prometheus.variables).stdout)


@pytest.mark.parametrize(("distributions", "negative"), [("both", False), ("histogram", True)])
def test_histogram_quantile_is_within_the_bound(
    prometheus: Prometheus, train: Run, distributions: str, *, negative: bool
) -> None:
    """By query: a bucket's width at most from NumPy's exact percentile of all samples, or of one window alone."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    samples, p99, scale = sent(train, prometheus, distributions, negative=negative)
    width = 2**2**-scale - 1
    assert width < 0.1
    for q in QS:
        (found,) = prometheus.values(f"histogram_quantile({q}, step_time_histogram_seconds)")
        expected = numpy.percentile(samples, 100 * q, method="inverted_cdf")
        assert abs(float(found) - expected) <= width * abs(expected), q
    assert ["9000"] == prometheus.values("histogram_count(step_time_histogram_seconds)")
    points = prometheus.get("query", query="step_time_histogram_seconds[1h]")["result"][0]["histograms"]
    assert ["3000", "6000", "9000"] == [histogram["count"] for _, histogram in points]
    earlier, last = (f"step_time_histogram_seconds @ {at}" for at, _ in points[1:])
    (median,) = prometheus.values(f"histogram_quantile(0.5, {last} - {earlier})")  # as rate() and increase() do
    expected = numpy.percentile(samples[6000:], 50, method="inverted_cdf")
    assert abs(float(median) - expected) <= width * abs(expected)
    if not negative:
        (total,) = prometheus.values("histogram_sum(step_time_histogram_seconds)")
        assert sum(samples) == pytest.approx(float(total))
    percentiles = [p99] if distributions == "both" else []
    assert percentiles == [float(value) for value in prometheus.values("step_time_p99_seconds")]
    assert ["9000"] == prometheus.values("step_time_count_total")
