"""Metrics of the pipeline itself, modelled on OpenTelemetry's ``otel.sdk.*`` metrics."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel_otel.names import NAMES
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.metrics.rising_sums import RisingSums, Total, number_point
from monitel_otlp.metrics.series import MILLISECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.account import Account
    from monitel_otlp.export.sender import Sender

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

#: Name, unit and description of the metric.
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"
DURATION = "monitel.export.duration"
EXPORTED = "monitel.exporter.item.exported"
DROPPED = "monitel.exporter.item.dropped"
NONFINITE = "monitel.stat.nonfinite"
DISCARDED = "monitel.stat.discarded"
COALESCED = "monitel.log.coalesced"
LEFT_OUT = "monitel.black_box.left_out"
SPOOL_SIZE = "monitel.spool.size"

#: Unit and description of each counter.
_COUNTERS = {
    EXPORTED: ("{item}", "Items that a backend acknowledged"),
    DROPPED: ("{item}", "Lost items, by reason"),
    NONFINITE: ("{window}", "Windows whose sum was left out: not finite, or a fall of a monotonic sum"),
    DISCARDED: ("{sample}", "Samples discarded because of max_samples"),
    COALESCED: ("{value}", "Logged numbers without a point, because a later one has the same millisecond"),
    LEFT_OUT: ("{item}", "Items that were recorded in memory without a file of the black box"),
}
_WITH_ZERO = {NONFINITE, DISCARDED}  # the other counters have a series once there is something to count
_BOUNDS = (0.01, 0.1, 1.0)  # seconds; each bound is a series in every process of a job

NAMES.reserve(QUEUE_SIZE[0], DURATION, SPOOL_SIZE, *_COUNTERS)


def write_queue_size(metrics: Any, items: int, start_ns: int, attributes: Sequence[KeyValue], now_ns: int) -> None:
    """Add the queue size to a list of metrics.

    Args:
        metrics: The list.
        items: Number of waiting items.
        start_ns: Start of the pipeline in this process, Unix ns; if the clock was set back, the point starts now.
        attributes: Attributes of the point.
        now_ns: Its time, Unix ns, at least a millisecond after the last one.
    """
    name, unit, description = QUEUE_SIZE
    metric = metrics.add(name=name, unit=unit, description=description)
    metric.sum.aggregation_temporality = _CUMULATIVE
    metric.sum.data_points.append(number_point(attributes, min(start_ns, now_ns), now_ns, items))


class _Durations:
    """The histogram of the attempts of one signal since a time."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.time_ns = start_ns
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0
        self.least, self.most = float("inf"), 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds
        self.least, self.most = min(self.least, seconds), max(self.most, seconds)


class SelfMetrics:
    """Writes the accounts, the size of the spool, and the durations of attempts. Use it in one thread at a time.

    The queue size is not one of them: every request has it.

    Args:
        account: Returns the account of each signal.
        counts: The function that reads each counter without attributes, by its name.
        spool_bytes: Returns the size of the spool.
        senders: The sender of each signal, with the durations of its attempts.
        temporality: ``"cumulative"``, ``"delta"`` or ``"lowmemory"``, which is delta for the histogram alone.
        start_ns: Time at which all counters were zero, Unix ns.

    """

    def __init__(
        self,
        account: Callable[[], Mapping[str, Account]],
        counts: Mapping[str, Callable[[], int]],
        spool_bytes: Callable[[], int],
        senders: Mapping[str, Sender],
        *,
        temporality: str,
        start_ns: int,
    ) -> None:
        self._account = account
        self._counts = counts
        self._spool_bytes = spool_bytes
        self._sums = RisingSums(delta=temporality == "delta", earlier={})
        self._delta_durations = temporality != "cumulative"
        self._start_ns = start_ns
        self._seen_ns = 0  # time of the previous call of write()
        self._senders = senders
        self._durations: dict[str, _Durations] = {}

    def write(self, metrics: Any, now_ns: int) -> None:
        """Add the metrics to the list of metrics of a message."""
        points: dict[str, Any] = {}

        def points_of(name: str) -> Any:
            if name not in points:
                points[name] = self._sums.add_metric(metrics, name, *_COUNTERS[name])
            return points[name]

        for name, attributes, value in self._totals():
            series = (name, *attributes.items())
            total = Total(series, value, self._start_ns)
            target = partial(points_of, name)
            self._sums.write(series, key_values(attributes), [total], now_ns, target, unseen_ns=self._seen_ns)
        self._seen_ns = now_ns
        size = metrics.add(name=SPOOL_SIZE, unit="By", description="Bytes in the spool")
        size.sum.aggregation_temporality = _CUMULATIVE
        start_ns = min(self._start_ns, now_ns - MILLISECOND_NS)
        size.sum.data_points.append(number_point((), start_ns, now_ns, self._spool_bytes()))
        self._write_durations(metrics, now_ns)

    def _totals(self) -> Iterator[tuple[str, dict[str, str], int]]:
        for signal, account in self._account().items():
            if account.delivered:
                yield EXPORTED, {"signal": signal}, account.delivered
            for reason, items in account.dropped.items():
                yield DROPPED, {"signal": signal, "error.type": reason}, items
        for name, read in self._counts.items():
            if (count := read()) or name in _WITH_ZERO:
                yield name, {}, count

    def _write_durations(self, metrics: Any, now_ns: int) -> None:
        for signal, sender in self._senders.items():
            while sender.seconds:
                if signal not in self._durations:
                    self._durations[signal] = _Durations(self._start_ns)
                self._durations[signal].add(sender.seconds.popleft())
        attempted = {signal: each for signal, each in self._durations.items() if any(each.buckets)}
        if not attempted:
            return
        metric = metrics.add(name=DURATION, unit="s", description="Duration of one delivery attempt")
        metric.histogram.aggregation_temporality = _DELTA if self._delta_durations else _CUMULATIVE
        for signal, each in attempted.items():
            each.time_ns = max(now_ns, each.time_ns + MILLISECOND_NS)
            metric.histogram.data_points.add(
                attributes=key_values({"signal": signal}),
                start_time_unix_nano=each.start_ns,
                time_unix_nano=each.time_ns,
                count=sum(each.buckets),
                sum=each.sum,
                bucket_counts=each.buckets,
                explicit_bounds=_BOUNDS,
                min=each.least,
                max=each.most,
            )
            if self._delta_durations:
                self._durations[signal] = _Durations(each.time_ns)
