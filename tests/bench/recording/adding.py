"""Stat.add: the call that a training loop makes at every step."""

from peers import otel_meter, prometheus_summary, torch_stat
from race import race, timed, twin
from row import report

import monitel


def main() -> None:
    """Measure one thread that adds to one Stat with all six aggregations."""
    stat = monitel.stat("loss", window_size=1e9)
    contenders = {
        "monitel": timed("stat.add(0.25)", lambda: {"stat": stat}),
        "list.append": timed("samples.append(0.25)", lambda: {"samples": []}),
    }
    if torchs := torch_stat("loss"):
        contenders["torch.monitor Stat.add"] = timed("stat.add(0.25)", lambda: {"stat": torchs})
    if summary := prometheus_summary():
        contenders["prometheus_client Summary.observe"] = timed("summary.observe(0.25)", lambda: {"summary": summary})
    if meter := otel_meter():
        record = meter.create_histogram("loss").record
        contenders["OTel SDK Histogram.record"] = timed("record(0.25)", lambda: {"record": record})
    in_c = twin() == "C"
    budgets = {
        "list.append": 2.0 if in_c else None,
        "torch.monitor Stat.add": 1 / 8 if in_c else 2.0,
        "prometheus_client Summary.observe": None,
        "OTel SDK Histogram.record": None,
    }
    report(f"Stat.add, {twin()}", race(contenders, 201), budgets)
    if in_c:
        several = {
            "monitel": timed("stat.add(0.25)", lambda: {"stat": stat}, unrolled=10),
            "list.append": timed("samples.append(0.25)", lambda: {"samples": []}, unrolled=10),
        }
        report("Stat.add, C, ten calls a turn of the loop", race(several, 201), {"list.append": None})


if __name__ == "__main__":
    main()
