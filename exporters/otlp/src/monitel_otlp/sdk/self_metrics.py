"""Metrics of the pipeline itself, modelled on OpenTelemetry's ``otel.sdk.*`` metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from monitel_otel.names import NAMES
from monitel_otlp.metrics.points import QUEUE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter

    from monitel_otlp.accounting import Account

NAMES.reserve(
    QUEUE_SIZE[0],
    "monitel.export.duration",
    "monitel.exporter.item.exported",
    "monitel.exporter.item.dropped",
    "monitel.stat.nonfinite",
    "monitel.stat.discarded",
    "monitel.log.coalesced",
    "monitel.spool.size",
    "monitel.black_box.left_out",
)


class SelfMetrics:
    """Reports the accounts, the queues, the size of the spool, and the duration of attempts.

    The instruments have another purpose: a reader without any instrument exports nothing. The queue size is not one of
    them, because requests without a reader need it, too.
    """

    def __init__(self, account: Callable[[], dict[str, Account]]) -> None:
        self._account = account
        self._duration: Histogram | None = None

    def attempted(self, signal: str, seconds: float) -> None:
        """Record the duration of a delivery attempt."""
        if self._duration is not None:
            self._duration.record(seconds, {"signal": signal})

    def register(
        self,
        meter: Meter,
        *,
        spool_bytes: Callable[[], int],
        nonfinite: Callable[[], int],
        discarded: Callable[[], int],
        coalesced: Callable[[], int],
        without_box: Callable[[], int],
    ) -> None:
        """Create the instruments."""

        def observe(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(read())]

        def observe_if_any(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(number)] if (number := read()) else []

        self._duration = meter.create_histogram(
            "monitel.export.duration",
            "s",
            "Duration of one delivery attempt",
            explicit_bucket_boundaries_advisory=[0.01, 0.1, 1.0],  # each boundary is a series in every process of a job
        )
        meter.create_observable_counter(
            "monitel.exporter.item.exported", [self._exported], "{item}", "Items that a backend acknowledged"
        )
        meter.create_observable_counter(
            "monitel.exporter.item.dropped", [self._dropped], "{item}", "Lost items, by reason"
        )
        meter.create_observable_counter(
            "monitel.stat.nonfinite",
            [observe(nonfinite)],
            "{window}",
            "Windows whose sum was left out: not finite, or a fall of a monotonic sum",
        )
        meter.create_observable_counter(
            "monitel.stat.discarded", [observe(discarded)], "{sample}", "Samples discarded because of max_samples"
        )
        meter.create_observable_counter(
            "monitel.log.coalesced",
            [observe_if_any(coalesced)],
            "{value}",
            "Logged numbers without a point, because a later one has the same millisecond",
        )
        meter.create_observable_counter(
            "monitel.black_box.left_out",
            [observe_if_any(without_box)],
            "{item}",
            "Events and requests for which the black box had no room, or after it was switched off",
        )
        meter.create_observable_up_down_counter(
            "monitel.spool.size", [observe(spool_bytes)], "By", "Bytes in the spool"
        )

    def waiting(self) -> int:
        """Return the number of waiting items in memory."""
        return sum(account.waiting for account in self._account().values())

    def _exported(self, _options: CallbackOptions) -> Iterable[Observation]:
        accounts = self._account().items()
        return [Observation(each.delivered, {"signal": signal}) for signal, each in accounts if each.delivered]

    def _dropped(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(items, {"signal": signal, "error.type": reason})
            for signal, account in self._account().items()
            for reason, items in account.dropped.items()
        ]
