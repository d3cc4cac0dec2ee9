"""Memory that a Stat takes, its name and its entry in the registry included."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

from race import optional, twin
from row import Row

import monitel

_STATS = 10_000
_BUDGET = 512


def bytes_each(make: Callable[[int], Any]) -> float:
    kept: list[Any] = [None] * _STATS
    gc.collect()
    tracemalloc.start()
    for number in range(_STATS):
        kept[number] = make(number)
    gc.collect()
    taken, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / _STATS


def main() -> None:
    """Measure ``monitel.stat()`` and the peer's cheapest instrument of that kind, in a registry too."""
    monitel.stat("warm.up")
    row = Row("memory per Stat", bytes_each(lambda number: monitel.stat(f"train.loss.{number}")), unit="B")
    row.most = _BUDGET if twin() == "C" else None
    row.peer = "prometheus_client Summary"
    if prometheus := optional("prometheus_client"):
        registry = prometheus.CollectorRegistry()
        row.peer_value = bytes_each(lambda number: prometheus.Summary(f"loss_{number}", "", registry=registry))
        row.ratio = (row.value or 0) / row.peer_value
    row.put()


if __name__ == "__main__":
    main()
