"""Metrics of the pipeline itself, modelled on OpenTelemetry's ``otel.sdk.*`` metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from monitel_otel.names import NAMES
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, Points, RisingSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.account import Account
    from monitel_otlp.export.sender import Sender

#: Name, unit and description of each metric that is not a counter.
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"
_SPOOL = "monitel.spool.size", "By", "Bytes in the spool"
_DURATION = "monitel.export.duration", "s", "Duration of one delivery attempt"
EXPORTED = "monitel.exporter.item.exported"
DROPPED = "monitel.exporter.item.dropped"
NONFINITE = "monitel.stat.nonfinite"
DISCARDED = "monitel.stat.discarded"
COALESCED = "monitel.log.coalesced"
LEFT_OUT = "monitel.black_box.left_out"

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

NAMES.reserve(QUEUE_SIZE[0], _DURATION[0], _SPOOL[0], *_COUNTERS)


class _Durations:
    """The histogram of the attempts of one signal since a time."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0
        self.least, self.most = float("inf"), 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds
        self.least, self.most = min(self.least, seconds), max(self.most, seconds)


class SelfMetrics:
    """Writes the accounts, the size of the spool, and the durations of attempts. Use it in one thread at a time.

    The queue size is not one of them: every request has it, see :meth:`write_queue_size`, which any sender may call.

    Args:
        account: Returns the account of each signal.
        counts: The function that reads each counter without attributes, by its name.
        spool_bytes: Returns the size of the spool.
        senders: The sender of each signal, with the durations of its attempts.
        attributes: Attributes of every point.
        temporality: ``"cumulative"``, ``"delta"`` or ``"lowmemory"``, which is delta for the histogram alone.
        start_ns: Time at which all counters were zero, Unix ns.
    """

    def __init__(
        self,
        account: Callable[[], Mapping[str, Account]],
        counts: Mapping[str, Callable[[], int]],
        spool_bytes: Callable[[], int],
        senders: Mapping[str, Sender],
        attributes: Mapping[str, str | int],
        *,
        temporality: str,
        start_ns: int,
    ) -> None:
        self._account = account
        self._counts = counts
        self._spool_bytes = spool_bytes
        self._senders = senders
        self._own = attributes
        self._attributes = key_values(attributes)
        self._sums = RisingSums(delta=temporality == "delta", sent={})
        self._delta_durations = temporality != "cumulative"
        self._start_ns = start_ns
        self._seen_ns = self._size_ns = 0  # times of the previous call of write(), and of the last queue size
        self._durations: dict[str, _Durations] = {}

    def write_queue_size(self, metrics: Any) -> None:
        """Add the number of waiting items to a list of metrics, at least a millisecond after the last one."""
        waiting = sum(account.waiting for account in self._account().values())
        self._size_ns = max(time.time_ns(), self._size_ns + MILLISECOND_NS)
        Points(metrics).add_level(self._size_ns, self._attributes, QUEUE_SIZE, waiting, self._start_ns)

    def write(self, points: Points, now_ns: int) -> None:
        """Add the metrics to the points of a message."""
        for name, attributes, value in self._totals():
            metric, key = (name, *_COUNTERS[name]), (name, *attributes.items())
            start_ns, unseen_ns = self._start_ns, self._seen_ns
            self._sums.write(
                points, metric, self._all(attributes), key, value, start_ns=start_ns, now_ns=now_ns, unseen_ns=unseen_ns
            )
        self._seen_ns = now_ns
        points.add_level(now_ns, self._attributes, _SPOOL, self._spool_bytes(), self._start_ns)
        self._write_durations(points, now_ns)

    def _all(self, attributes: dict[str, str]) -> list[KeyValue]:
        return key_values({**attributes, **self._own}) if attributes else self._attributes

    def _totals(self) -> Iterator[tuple[str, dict[str, str], int]]:
        for signal, account in self._account().items():
            if account.delivered:
                yield EXPORTED, {"signal": signal}, account.delivered
            for reason, items in account.dropped.items():
                yield DROPPED, {"signal": signal, "error.type": reason}, items
        for name, read in self._counts.items():
            if (count := read()) or name in _WITH_ZERO:
                yield name, {}, count

    def _write_durations(self, points: Points, now_ns: int) -> None:
        temporality = DELTA if self._delta_durations else CUMULATIVE
        for signal, sender in self._senders.items():
            each = self._durations.get(signal)
            if each is None:
                each = self._durations[signal] = _Durations(self._start_ns)
            while sender.seconds:
                each.add(sender.seconds.popleft())
            if not (count := sum(each.buckets)):
                continue
            point = points.add(now_ns, self._all({"signal": signal}), *_DURATION, "histogram", temporality)
            point.start_time_unix_nano = min(each.start_ns, now_ns - MILLISECOND_NS)
            point.count, point.sum, point.min, point.max = count, each.sum, each.least, each.most
            point.bucket_counts.extend(each.buckets)
            point.explicit_bounds.extend(_BOUNDS)
            if self._delta_durations:
                self._durations[signal] = _Durations(now_ns)
