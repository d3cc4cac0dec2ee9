"""Blocks that are timed: ``with stat.time()`` and ``with counter.guard()``."""

from __future__ import annotations

from peers import prometheus_summary
from race import optional, race, timed
from row import report

import monitel


def main() -> None:
    """Measure what the ``with`` around an empty block costs."""
    torch = optional("torch.monitor")  # imported first: guards and timers then ask it whether it is compiling
    stat, counter = monitel.stat("step", window_size=1e9), monitel.WaitCounter("loading")
    timers = {"monitel": timed("with stat.time(): pass", lambda: {"stat": stat})}
    if summary := prometheus_summary():
        timers["prometheus_client Summary.time"] = timed("with summary.time(): pass", lambda: {"summary": summary})
    report("with stat.time()", race(timers), {"prometheus_client Summary.time": None})

    guards = {"monitel": timed("with counter.guard(): pass", lambda: {"counter": counter})}
    if torch:
        torchs = torch._WaitCounter("loading")
        guards["torch.monitor"] = timed("with counter.guard(): pass", lambda: {"counter": torchs})
    report("with WaitCounter.guard()", race(guards), {"torch.monitor": None})


if __name__ == "__main__":
    main()
