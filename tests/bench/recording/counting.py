"""Counter.add: the call that counts the samples of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from race import optional, race, timed
from row import report

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

_PROMETHEUS, _SDK = "prometheus_client Counter.inc", "OTel SDK Counter.add"


def main() -> None:
    """Measure one thread that adds an int to one counter."""
    counter = monitel.counter("samples")
    contenders = {"monitel": timed("counter.add(32)", lambda: {"counter": counter})}
    if prometheus := optional("prometheus_client"):
        peer = prometheus.Counter("samples", "Samples.", registry=None)
        contenders[_PROMETHEUS] = timed("counter.inc(32)", lambda: {"counter": peer})
    if add := otel_add():
        contenders[_SDK] = timed("add(32)", lambda: {"add": add})
    report("Counter.add", race(contenders, 201), {_PROMETHEUS: 1.0, _SDK: None})


def otel_add() -> Callable[[float], None] | None:
    """``Counter.add`` of the OpenTelemetry SDK with a reader that sends nothing, None without the SDK."""
    metrics, export = optional("opentelemetry.sdk.metrics"), optional("opentelemetry.sdk.metrics.export")
    if metrics is None or export is None:
        return None
    add: Callable[[float], None] = (
        metrics.MeterProvider([export.InMemoryMetricReader()]).get_meter("bench").create_counter("samples").add
    )
    return add


if __name__ == "__main__":
    main()
