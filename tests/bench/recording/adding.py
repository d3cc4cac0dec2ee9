"""Stat.add: the call that a training loop makes at every step; with a histogram, and where it closes the window."""

import random
from collections.abc import Callable
from typing import Any

from peers import otel_meter, prometheus_summary, torch_stat
from race import Contender, optional, race, timed, twin
from row import report

import monitel
from monitel.stats.definition import TORCHS

_ROUNDS = 201
_CLOSED = 300  # Stats whose window a single sample fills
_IN_C = twin() == "C"


def main() -> None:
    adding()
    rng = random.Random(1)
    # Some that spread over three octaves, as step times do, and some so close together that a table lacks them.
    distributing("histogram", [rng.lognormvariate(0, 0.3) for _ in range(1000)])
    distributing("histogram, samples within 1 %", [rng.uniform(0.995, 1.005) for _ in range(1000)])
    closing()


def adding() -> None:
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
    budgets = {
        "list.append": 2.0 if _IN_C else None,
        "torch.monitor Stat.add": 1 / 8 if _IN_C else 2.0,
        "prometheus_client Summary.observe": None,
        "OTel SDK Histogram.record": None,
    }
    report(f"Stat.add, {twin()}", race(contenders, _ROUNDS), budgets)


def distributing(what: str, samples: list[float]) -> None:
    """Measure different samples: the same one again would be foretold by the CPU."""

    def calling(add: Callable[[float], object]) -> Contender:
        names: dict[str, Any] = {"samples": samples, "add": add}
        return timed("for sample in samples: add(sample)", lambda: names, len(samples))

    stat, kept = monitel.Stat("loss", [*TORCHS, monitel.HISTOGRAM], 1e9), list[float]()
    costs = race({"monitel": calling(stat.add), "list.append": calling(kept.append)}, _ROUNDS)
    report(f"Stat.add, {what}, {twin()}", costs, {"list.append": 3.0 if _IN_C else None})


def closing() -> None:
    """Measure the add that closes a window, with a handler that does nothing."""

    def full(make: Callable[[], Any]) -> Contender:
        return timed("for stat in stats: stat.add(0.25)", lambda: {"stats": [make() for _ in range(_CLOSED)]}, _CLOSED)

    monitor = optional("torch.monitor")
    with monitel.register_event_handler(lambda event: None):
        contenders = {"monitel": full(lambda: monitel.Stat("loss", TORCHS, 1e9, 1))}
        if monitor:
            handle = monitor.register_event_handler(lambda event: None)
            contenders["torch.monitor"] = full(lambda: torch_stat("loss", 1))
        report(f"add that closes the window, one handler, {twin()}", race(contenders), {"torch.monitor": None})
        if monitor:
            monitor.unregister_event_handler(handle)  # torch crashes at exit with handlers registered


if __name__ == "__main__":
    main()
