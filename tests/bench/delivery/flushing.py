"""All windows of 90,000 Stats closed at once, as at the end of a job, with a handler that keeps each."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from row import Row

import monitel
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATS = 90_000
_RUNS = 5
_MOST_NS = 0.7e9


def time_to_flush(stats: Sequence[monitel.Stat]) -> int:
    """From the call of flush() to its end, in ns, with garbage collections."""
    kept: list[Any] = []
    for stat in stats:
        stat.add(0.25)
    with monitel.register_event_handler(lambda event: kept.append(event.window)):
        begin = time.perf_counter_ns()
        monitel.flush()
        took = time.perf_counter_ns() - begin
    if len(kept) != len(stats):
        raise SystemExit(f"{len(kept)} windows were closed")
    return took


def main() -> None:
    """Measure with torch's aggregations, and with distributions."""
    for what, aggregations in ("", TORCHS), (" with distributions", tuple(monitel.Aggregation)):
        stats = [monitel.Stat(f"loss.{n}", aggregations, 3600.0) for n in range(_STATS)]
        Row(f"flush of {_STATS:,} Stats{what}", median(time_to_flush(stats) for _ in range(_RUNS)), most=_MOST_NS).put()
        del stats


if __name__ == "__main__":
    main()
