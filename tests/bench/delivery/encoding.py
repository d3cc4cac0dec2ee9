"""Encoding of queued items into requests, and their raw forms for the exit; events beside the OTel SDK."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from race import optional, race
from row import Row, report

import monitel
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from race import Contender

_ITEMS = 2000
_SDK = "OTel SDK and its encoder"


def costing(run: Callable[[], object]) -> Contender:
    """Return a contender: CPU time of one item."""

    def once() -> float:
        begin = time.process_time_ns()
        run()
        return (time.process_time_ns() - begin) / _ITEMS

    return once


def events() -> dict[str, Contender]:
    """Events with three attributes: live, by the SDK, and raw."""
    from opentelemetry.context import Context  # late: monitel_otlp may be missing
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
    from opentelemetry.sdk.resources import Resource

    from monitel_otel.records import Records
    from monitel_otlp.logs.mapping import EventRequests
    from monitel_otlp.messages.resource import encode_resource
    from monitel_otlp.raw.forms import raw_events

    resource = Resource({"service.name": "bench"})
    data: dict[str, str | int | float] = {"path": "/checkpoints/17", "seconds": 1.5, "bytes": 12_345}
    event = monitel.Event("checkpoint.written", monitel.clock.now(), data)
    items = [(event, 5, Context(), None, time.time_ns()) for _ in range(_ITEMS)]
    builder = EventRequests(_ignore, _ignore, encode_resource(resource))
    kept: list[Any] = []

    class Keep(LogRecordProcessor):
        def on_emit(self, log_record: Any) -> None:
            kept.append(log_record)

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return not timeout_millis

    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(Keep())
    records = Records(provider.get_logger("monitel"))

    def live() -> None:
        for item in items:
            builder.add(item)
        builder.flush()

    def by_sdk() -> None:
        for event, step, context, _, observed_ns in items:
            records.write(event, step=step, context=context, observed_ns=observed_ns)
        encode_logs(kept).SerializeToString()
        kept.clear()

    return {
        "live": costing(live),
        "sdk": costing(by_sdk),
        "raw": costing(lambda: list(raw_events(items, builder.mapping, b"").items)),
    }


def windows() -> dict[str, Contender]:
    """Windows with torch's six aggregations: live and raw."""
    from monitel_otlp.metrics.mapping import WindowMapping  # late: monitel_otlp may be missing
    from monitel_otlp.metrics.requests import MetricRequests
    from monitel_otlp.metrics.window_queue import WindowQueue
    from monitel_otlp.raw.forms import raw_windows

    queue = WindowQueue(_ITEMS, 1 << 30, {"training.rank": 3})

    def put(event: monitel.Event) -> None:
        if event.window is not None:
            queue.put(event.window)

    handle = monitel.register_event_handler(put)
    for number in range(_ITEMS):
        stat = monitel.Stat(f"x{number}", TORCHS, 1e9)
        stat.add(0.25)
        stat.flush()
    monitel.unregister_event_handler(handle)
    entries = queue.queue.take(_ITEMS)
    mapping = WindowMapping("cumulative", 0, "percentiles")
    exporter = MetricRequests(mapping, lambda: 0, b"", _ignore, _ignore)

    def live() -> None:
        for begin in range(0, _ITEMS, 8):
            exporter.add(entries[begin : begin + 8])
        exporter.flush()

    return {"live": costing(live), "raw": costing(lambda: list(raw_windows(entries, mapping, b"").items))}


def _ignore(*_arguments: object) -> None:
    pass


def main() -> None:
    """Live encoding of both kinds, events beside the SDK; then the raw forms."""
    if optional("monitel_otlp") is None:
        Row("encoding an event", None).put()
        return
    of_events, of_windows = events(), windows()
    what = "encoding an event with three attributes"
    report(what, race({"monitel": of_events["live"], _SDK: of_events["sdk"]}, rounds=11), {_SDK: 0.6})
    report("encoding a window of six aggregations", race({"monitel": of_windows["live"]}, rounds=11), {})
    report("raw form of an event", race({"monitel": of_events["raw"]}, rounds=11), {})
    report("raw form of a window", race({"monitel": of_windows["raw"]}, rounds=11), {})


if __name__ == "__main__":
    main()
