"""Calls around a training step: counters, timers, guards and activities; and what an open black box adds to them."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from peers import otel_meter, prometheus_summary
from race import optional, race, timed
from row import Row, report

import monitel
from monitel.blackbox.context_page import PAGE, close_page, open_page
from monitel.blackbox.folder import Folder

_ROUNDS = 201
_PROMETHEUS, _SDK, _TIMER = "prometheus_client Counter.inc", "OTel SDK Counter.add", "prometheus_client Summary.time"
_ACTIVITY_NS = 2500.0
#: Calls that write to the page of an open box: their code, and the budget for what this adds.
_PAGE_CALLS = {"set_step": ("set_step(next(steps))", 1500.0), "guard()": ("with counter.guard(): pass", 2500.0)}


def main() -> None:
    torch = optional("torch.monitor")  # imported first: guards and timers then ask it whether it is compiling
    counting()
    stat, counter = monitel.stat("step", window_size=1e9), monitel.WaitCounter("loading")
    timers = {"monitel": timed("with stat.time(): pass", lambda: {"stat": stat})}
    if summary := prometheus_summary():
        timers[_TIMER] = timed("with summary.time(): pass", lambda: {"summary": summary})
    report("with stat.time()", race(timers), {_TIMER: None})

    guards = {"monitel": timed("with counter.guard(): pass", lambda: {"counter": counter})}
    if torch:
        torchs = torch._WaitCounter("loading")
        guards["torch.monitor"] = timed("with counter.guard(): pass", lambda: {"counter": torchs})
    report("with WaitCounter.guard()", race(guards), {"torch.monitor": None})

    monitel.set_step(1)
    entering = timed('with activity("data"): pass', lambda: {"activity": monitel.activity})
    report("enter and leave an activity", race({"monitel": entering}, _ROUNDS), {}, _ACTIVITY_NS)
    with_a_box(counter)


def counting() -> None:
    counter = monitel.counter("samples")
    contenders = {"monitel": timed("counter.add(32)", lambda: {"counter": counter})}
    if prometheus := optional("prometheus_client"):
        peer = prometheus.Counter("samples", "Samples.", registry=None)
        contenders[_PROMETHEUS] = timed("counter.inc(32)", lambda: {"counter": peer})
    if meter := otel_meter():
        add = meter.create_counter("samples").add
        contenders[_SDK] = timed("add(32)", lambda: {"add": add})
    report("Counter.add", race(contenders, _ROUNDS), {_PROMETHEUS: 1.0, _SDK: None})


def with_a_box(counter: monitel.WaitCounter) -> None:
    """Race each call with the page of a box open against the same with the page closed."""
    names: dict[str, Any] = {"counter": counter, "set_step": monitel.set_step, "steps": count(2)}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        folder = Folder.open(Path(path))

        def prepared(*, opened: bool) -> Callable[[], dict[str, Any]]:
            def prepare() -> dict[str, Any]:
                folder.unlink(PAGE)
                if opened:
                    open_page(folder)
                else:
                    close_page()
                return names

            return prepare

        for what, (code, most) in _PAGE_CALLS.items():
            kinds = {"open": True, "closed": False}
            costs = race({each: timed(code, prepared(opened=kinds[each])) for each in kinds}, _ROUNDS)
            added = median(mine - others for mine, others in zip(costs["open"], costs["closed"], strict=True))
            Row(f"an open black box adds to {what}", added, most=most).put()
        close_page()


if __name__ == "__main__":
    main()
