"""Delivery of recorded items without a network: from the journal to a request, and settled; beside the OTel SDK."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from race import optional, race
from row import Row, report

import monitel
from monitel.stats import window_sinks
from monitel.stats.definition import TORCHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from race import Contender

_ITEMS = 2000
_SDK = "OTel SDK and its encoder"


def costing(run: Callable[[], object], record: Callable[[], object] = lambda: None) -> Contender:
    """Return a contender: CPU time of one item, without recording it."""

    def once() -> float:
        record()
        begin = time.process_time_ns()
        run()
        return (time.process_time_ns() - begin) / _ITEMS

    return once


class Record:
    """The record of a process in anonymous memory, and the delivery from it."""

    def __init__(self) -> None:
        from opentelemetry.sdk.resources import Resource  # late: monitel_otlp may be missing

        from monitel.blackbox.box import Box
        from monitel_otlp.export.recorder import ExportRecorder, MetricSeries
        from monitel_otlp.export.sender import Outbox
        from monitel_otlp.messages.log_records import LogsEncoder
        from monitel_otlp.messages.request import encode_resource
        from monitel_otlp.metrics.windows import Mapping, Totals, WindowsEncoder

        self.resource = Resource({"service.name": "bench"})
        encoded = encode_resource(self.resource)
        box = Box(None, None, {})
        self.recorder = ExportRecorder(box, MetricSeries(2 * _ITEMS, {"training.rank": 3}))
        mapping = Mapping("cumulative", time.time_ns(), "percentiles")
        totals = box.journals["metrics"].fold = Totals(self.recorder.definitions.__getitem__, mapping)
        self.events = Outbox(box.journals["logs"], LogsEncoder(encoded))
        self.windows = Outbox(box.journals["metrics"], WindowsEncoder(encoded, mapping, totals))

    @staticmethod
    def deliver(outbox: Any) -> None:
        """Encode and settle everything."""
        while (request := outbox.next()) is not None:
            outbox.settle(request.sent)


def events(record: Record) -> dict[str, Contender]:
    """Events with three attributes: from the journal, and by the SDK."""
    from opentelemetry.context import Context  # late: monitel_otlp may be missing
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor

    from monitel_otel.records import Records

    data: dict[str, str | int | float] = {"path": "/checkpoints/17", "seconds": 1.5, "bytes": 12_345}
    event, context = monitel.Event("checkpoint.written", monitel.clock.now(), data), Context()
    kept: list[Any] = []

    class Keep(LogRecordProcessor):
        def on_emit(self, log_record: Any) -> None:
            kept.append(log_record)

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return not timeout_millis

    provider = LoggerProvider(record.resource, shutdown_on_exit=False)
    provider.add_log_record_processor(Keep())
    records = Records(provider.get_logger("monitel"))

    def emit() -> None:
        for _ in range(_ITEMS):
            record.recorder.event(event)

    def by_sdk() -> None:
        for _ in range(_ITEMS):
            records.write(event, context)
        encode_logs(kept).SerializeToString()
        kept.clear()

    return {"monitel": costing(lambda: record.deliver(record.events), emit), _SDK: costing(by_sdk)}


def windows(record: Record) -> Contender:
    """Windows with torch's six aggregations, of as many Stats."""
    stats = [monitel.Stat(f"x{number}", TORCHS, 1e9) for number in range(_ITEMS)]

    def close() -> None:
        window_sinks.add(record.recorder.window)
        for stat in stats:
            stat.add(0.25)
            stat.flush()
        window_sinks.remove(record.recorder.window)

    return costing(lambda: record.deliver(record.windows), close)


def main() -> None:
    """Measure both kinds, events beside the SDK."""
    if optional("monitel_otlp") is None:
        Row("delivery of an event, without a network", None).put()
        return
    record = Record()
    report("delivery of an event, without a network", race(events(record), rounds=11), {_SDK: 0.6})
    report("delivery of a window of six aggregations", race({"monitel": windows(record)}, rounds=11), {})


if __name__ == "__main__":
    main()
