"""Costs of the guard of a wait counter and of writing a trace, beside torch."""

import tempfile
import time
from typing import Any

import torch
from race import Contender, race, timed
from row import report

import monitel
from monitel.profiler import profile, record_function

_RANGES = 20_000
_RATIO = 1.2


def guard(counter: Any) -> Contender:
    return timed("with counter.guard(): pass", lambda: {"counter": counter})


def exporting(make: Any, label: Any, folder: str) -> Contender:
    """A contender that writes the trace of a new profile, whose ranges do not count."""

    def once() -> float:
        with make() as prof:
            for _ in range(_RANGES):
                with label("forward"):
                    pass
        begin = time.process_time_ns()
        prof.export_chrome_trace(f"{folder}/trace.json")
        return time.process_time_ns() - begin

    return once


def main() -> None:
    counters = {"monitel": monitel.WaitCounter("loading"), "torch": torch.monitor._WaitCounter("loading")}
    costs = race({name: guard(counter) for name, counter in counters.items()})
    report("with WaitCounter.guard()", costs, {"torch": _RATIO})
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            "monitel": exporting(profile, record_function, folder),
            "torch": exporting(torch.profiler.profile, torch.profiler.record_function, folder),
        }
        report(f"export_chrome_trace of {_RANGES:,} ranges", race(contenders, rounds=7), {"torch": _RATIO})


if __name__ == "__main__":
    main()
