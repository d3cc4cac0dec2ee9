"""What became of every item: exported, or dropped and why."""

from __future__ import annotations

import time
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter
    from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics


PIPELINE_SCOPE = "monitel.pipeline"
_QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"


class Tally:
    """Counts items (windows, log records, spans) by signal, and drops by reason."""

    def __init__(self) -> None:
        self._lock = Lock()  # held for one addition
        self._exported: Counter[str] = Counter()
        self._dropped: Counter[tuple[str, str]] = Counter()
        self.duration: Histogram | None = None  # an instrument that the meter makes

    def exported(self, signal: str, items: int) -> None:
        """Items that a backend has acknowledged."""
        with self._lock:
            self._exported[signal] += items

    def attempted(self, signal: str, seconds: float) -> None:
        """An attempt to deliver, and how long it took."""
        if self.duration is not None:
            self.duration.record(seconds, {"signal": signal})

    def dropped(self, signal: str, reason: str, items: int) -> None:
        """Items that are lost, and why: see :class:`Outbox`; and ``queue_full``, ``encoding``."""
        if items:
            with self._lock:
                self._dropped[signal, reason] += items

    def total(self, signal: str) -> int:
        """Items of one signal that a backend has acknowledged so far."""
        return self._exported[signal]

    def dropped_by_reason(self) -> dict[str, int]:
        """Items that are lost, all signals together."""
        found: Counter[str] = Counter()
        for (_signal, reason), items in list(self._dropped.items()):
            found[reason] += items
        return dict(found)

    def total_dropped(self) -> int:
        """Items that are lost, all signals and reasons together."""
        return sum(self.dropped_by_reason().values())

    def observe_exported(self, _options: CallbackOptions) -> Iterable[Observation]:
        """For ``monitel.exporter.item.exported``."""
        return [Observation(items, {"signal": signal}) for signal, items in list(self._exported.items())]

    def observe_dropped(self, _options: CallbackOptions) -> Iterable[Observation]:
        """For ``monitel.exporter.item.dropped``."""
        return [
            Observation(items, {"signal": signal, "error.type": reason})
            for (signal, reason), items in list(self._dropped.items())
        ]


def register_self_metrics(
    meter: Meter,
    tally: Tally,
    *,
    queue_size: Callable[[], int],
    spool_bytes: Callable[[], int],
    nonfinite: Callable[[], int],
    discarded: Callable[[], int],
) -> None:
    """Report the pipeline itself, in the shape of OpenTelemetry's ``otel.sdk.*`` metrics.

    They also keep every request of windows company: a reader without instruments exports nothing, and Prometheus
    orders samples by resource, for which a sample of the present must be in each request.
    """

    def observe(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: [Observation(read())]

    tally.duration = meter.create_histogram(
        "monitel.export.duration",
        "s",
        "Time that one attempt to deliver took",
        explicit_bucket_boundaries_advisory=[0.01, 0.1, 1.0],  # a series each, in every process of a job
    )
    meter.create_observable_counter(
        "monitel.exporter.item.exported", [tally.observe_exported], "{item}", "Items that a backend acknowledged"
    )
    register_drops(meter, tally)
    meter.create_observable_counter(
        "monitel.stat.nonfinite", [observe(nonfinite)], "{window}", "Windows whose sum was not finite"
    )
    meter.create_observable_counter(
        "monitel.stat.discarded", [observe(discarded)], "{sample}", "Samples that max_samples kept out of windows"
    )
    name, unit, description = _QUEUE_SIZE
    meter.create_observable_up_down_counter(name, [observe(queue_size)], unit, description)
    meter.create_observable_up_down_counter(
        "monitel.spool.size", [observe(spool_bytes)], "By", "Bytes that wait on disk"
    )


def register_drops(meter: Meter, tally: Tally) -> None:
    """Report what was lost, and nothing while nothing is."""
    meter.create_observable_counter(
        "monitel.exporter.item.dropped", [tally.observe_dropped], "{item}", "Items that were lost, by reason"
    )


def write_queue_size(scope: ScopeMetrics, items: int) -> None:
    """The queue's size alone, as of now, into a request that is made without the SDK."""
    scope.scope.name, scope.scope.version = PIPELINE_SCOPE, monitel.__version__
    metric = scope.metrics.add()
    metric.name, metric.unit, metric.description = _QUEUE_SIZE
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metric.sum.data_points.add(time_unix_nano=time.time_ns(), as_int=items)
