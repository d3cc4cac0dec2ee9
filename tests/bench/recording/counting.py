"""Calls around a training step: ``Counter.add``, and blocks that are timed by ``stat.time()`` and ``guard()``."""

from peers import otel_meter, prometheus_summary
from race import optional, race, timed
from row import report

import monitel

_PROMETHEUS, _SDK = "prometheus_client Counter.inc", "OTel SDK Counter.add"


def main() -> None:
    counting()
    waiting()


def counting() -> None:
    counter = monitel.counter("samples")
    contenders = {"monitel": timed("counter.add(32)", lambda: {"counter": counter})}
    if prometheus := optional("prometheus_client"):
        peer = prometheus.Counter("samples", "Samples.", registry=None)
        contenders[_PROMETHEUS] = timed("counter.inc(32)", lambda: {"counter": peer})
    if meter := otel_meter():
        add = meter.create_counter("samples").add
        contenders[_SDK] = timed("add(32)", lambda: {"add": add})
    report("Counter.add", race(contenders, 201), {_PROMETHEUS: 1.0, _SDK: None})


def waiting() -> None:
    """Enter and leave the ``with`` around an empty block."""
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
