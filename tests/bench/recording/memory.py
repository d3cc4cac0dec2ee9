"""Memory that a Stat takes, its name and its entry in the registry included."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

from race import optional, twin
from row import Row

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

_STATS = 10_000
_BUDGET = 512


def bytes_each(make: Callable[[int], Any]) -> float:
    """Bytes that one of 10,000 takes."""
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
    rows = [Row("memory per Stat", bytes_each(lambda number: monitel.stat(f"train.loss.{number}")), unit="B")]
    rows[0].most = _BUDGET if twin() == "C" else None
    rows[0].peer = "prometheus_client Summary"
    if prometheus := optional("prometheus_client"):
        registry = prometheus.CollectorRegistry()
        rows[0].peer_value = bytes_each(lambda number: prometheus.Summary(f"loss_{number}", "", registry=registry))
        rows[0].ratio = (rows[0].value or 0) / rows[0].peer_value

    def with_window(number: int) -> monitel.Stat:
        stat = monitel.stat(f"closed.{number}")
        stat.add(0.25)
        stat.flush()
        return stat

    rows.append(Row("memory per Stat, a window closed", bytes_each(with_window), unit="B"))
    for row in rows:
        row.put()


if __name__ == "__main__":
    main()
