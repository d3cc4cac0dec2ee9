"""Distributions: what a sample costs with a histogram, what closing and merging one costs, and its memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from race import optional, race, timed, twin
from recording.memory import bytes_each
from row import Row, report

import monitel
from monitel import HISTOGRAM, STDDEV
from monitel.stats.definition import TORCHS

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOW = 1e9
_PROMETHEUS, _SDK = "prometheus_client Histogram.observe", "OTel SDK exponential Histogram.record"
_MOST = 3.0  # list.append


def main() -> None:
    """Measure samples that spread over three octaves, as step times do; and some that hardly differ."""
    rng = random.Random(1)
    samples = [rng.lognormvariate(0, 0.3) for _ in range(1000)]
    adding(samples)
    adding_alike("samples within 1 %", [rng.uniform(0.995, 1.005) for _ in range(1000)])
    adding_alike("equal samples", [0.3] * 1000)
    if twin() == "C":
        merging(samples)
        memory()


def adding(samples: list[float]) -> None:
    """One thread that adds to one Stat, with different samples: the same one again would be foretold by the CPU."""

    def calling(code: str, prepare: Callable[[], dict[str, Any]]) -> Callable[[], float]:
        return timed(f"for sample in samples:\n    {code}", lambda: {"samples": samples, **prepare()}, len(samples))

    def stat(*extra: monitel.Aggregation) -> Callable[[], float]:
        kept = monitel.Stat("loss", [*TORCHS, *extra], _WINDOW)
        return calling("stat.add(sample)", lambda: {"stat": kept})

    peers = {"list.append": calling("kept.append(sample)", lambda: {"kept": []})}
    if prometheus := optional("prometheus_client"):
        histogram = prometheus.Histogram("loss", "A loss.", registry=None)
        peers[_PROMETHEUS] = calling("histogram.observe(sample)", lambda: {"histogram": histogram})
    if sdk := exponential_of_sdk():
        peers[_SDK] = calling("record(sample)", lambda: {"record": sdk[0]})
    most = _MOST if twin() == "C" else None
    append = {"list.append": peers["list.append"]}
    asked = {"histogram": [HISTOGRAM], "histogram and stddev": [HISTOGRAM, STDDEV], "stddev": [STDDEV], "neither": []}
    for what, extra in asked.items():
        costs = race({"monitel": stat(*extra), **append}, 201)
        report(f"Stat.add, {what}, {twin()}", costs, {"list.append": most if extra else None})
    what = f"Stat.add, histogram, in turns with peers, {twin()}"
    report(what, race({"monitel": stat(HISTOGRAM), **peers}, 201), dict.fromkeys(("list.append", _PROMETHEUS, _SDK)))


def adding_alike(what: str, samples: list[float]) -> None:
    """Samples so close together that a table does not have their buckets."""
    stat = monitel.Stat("loss", [*TORCHS, HISTOGRAM], _WINDOW)
    loop = "for sample in samples:\n    "
    contenders = {
        "monitel": timed(loop + "stat.add(sample)", lambda: {"samples": samples, "stat": stat}, len(samples)),
        "list.append": timed(loop + "kept.append(sample)", lambda: {"samples": samples, "kept": []}, len(samples)),
    }
    most = _MOST if twin() == "C" else None
    report(f"Stat.add, histogram, {what}, {twin()}", race(contenders, 201), {"list.append": most})


def merging(samples: list[float]) -> None:
    """Two histograms of a thousand samples; the SDK merges when it collects a cumulative one."""
    one, other = monitel.Histogram.of(samples), monitel.Histogram.of([sample * 1.1 for sample in samples])
    contenders = {"monitel": timed("one.merge(other)", lambda: {"one": one, "other": other})}
    if sdk := exponential_of_sdk():
        record, collect = sdk

        def recorded() -> dict[str, Any]:
            for sample in samples:
                record(sample)
            return {"collect": collect}

        contenders["OTel SDK collect of one"] = timed("collect()", recorded, 1)
    report("merge two histograms", race(contenders), {"OTel SDK collect of one": None})
    report("four percentiles", race({"monitel": timed("one.percentiles()", lambda: {"one": one})}), {})

    def closing(*extra: monitel.Aggregation) -> Callable[[], float]:
        stat = monitel.Stat("loss", [*TORCHS, *extra], _WINDOW)

        def filled() -> dict[str, Any]:
            for sample in samples:
                stat.add(sample)
            return {"stat": stat}

        return timed("stat.flush()", filled, 1)

    costs = race({"monitel": closing(HISTOGRAM), "the same without": closing()})
    report("close a window with a histogram, no handler", costs, {"the same without": None})


def memory() -> None:
    """Return the bytes that a Stat takes more than one without."""

    def with_aggregations(*extra: monitel.Aggregation) -> float:
        asked = [*TORCHS, *extra]
        return bytes_each(lambda number: monitel.Stat(f"loss.{number}", asked, _WINDOW))

    plain = with_aggregations()
    Row("memory of a histogram", with_aggregations(HISTOGRAM) - plain, unit="B").put()
    Row("memory of a standard deviation", with_aggregations(STDDEV) - plain, unit="B").put()


def exponential_of_sdk() -> tuple[Callable[[float], None], Callable[[], object]] | None:
    """The OpenTelemetry SDK's exponential histogram: how to record, how to collect; None without the SDK."""
    metrics, export = optional("opentelemetry.sdk.metrics"), optional("opentelemetry.sdk.metrics.export")
    view = optional("opentelemetry.sdk.metrics.view")
    if metrics is None or export is None or view is None:
        return None
    exponential = {metrics.Histogram: view.ExponentialBucketHistogramAggregation()}
    reader = export.InMemoryMetricReader(preferred_aggregation=exponential)
    histogram = metrics.MeterProvider([reader]).get_meter("bench").create_histogram("loss")
    return histogram.record, reader.get_metrics_data


if __name__ == "__main__":
    main()
