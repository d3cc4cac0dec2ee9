"""Encoding of queued items into requests, and their raw forms for the exit; events beside the OTel SDK."""

from __future__ import annotations

import time
from types import SimpleNamespace
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


def parts() -> SimpleNamespace | None:
    """Return the modules; None if monitel-otlp is not installed."""
    if optional("monitel_otlp") is None:
        return None
    names = (
        *("raw", "logs.requests", "metrics.mapping", "metrics.window_queue"),
        *("sdk.exporters", "sdk.encoder", "sdk._compat"),
    )
    return SimpleNamespace(
        **{name.rpartition(".")[2]: optional(f"monitel_otlp.{name}") for name in names},
        resources=optional("opentelemetry.sdk.resources"),
        context=optional("opentelemetry.context"),
        otel=optional("monitel_otel"),
    )


def events(found: Any) -> dict[str, Contender]:
    """Events with three attributes: live, by the SDK, and raw."""
    resource = found.resources.Resource({"service.name": "bench"})
    data: dict[str, str | int | float] = {"path": "/checkpoints/17", "seconds": 1.5, "bytes": 12_345}
    event = monitel.Event("checkpoint.written", monitel.clock.now(), data)
    items = [(event, 5, found.context.Context(), None, time.time_ns()) for _ in range(_ITEMS)]
    builder = found.requests.EventRequests(_ignore, _ignore, found.encoder.encode_resource(resource))
    kept: list[Any] = []

    class Keep(found._compat.LogRecordProcessor):  # type: ignore[misc]  # loaded by name
        def on_emit(self, log_record: Any) -> None:
            kept.append(log_record)

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return not timeout_millis

    provider = found._compat.LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(Keep())
    records = found.otel.Records(provider.get_logger("monitel"))

    def live() -> None:
        for item in items:
            builder.add(item)
        builder.flush()

    def by_sdk() -> None:
        for event, step, context, _, observed_ns in items:
            records.write(event, step=step, context=context, observed_ns=observed_ns)
        found._compat.encode_logs(kept).SerializeToString()
        kept.clear()

    return {
        "live": costing(live),
        "sdk": costing(by_sdk),
        "raw": costing(lambda: found.raw.raw_events(items, builder.mapping, b"")),
    }


def windows(found: Any) -> dict[str, Contender]:
    """Windows with torch's six aggregations: live and raw."""
    queue = found.window_queue.WindowQueue(_ITEMS, 1 << 30, {"training.rank": 3})
    handle = monitel.register_event_handler(lambda event: queue.put(event.window))
    for number in range(_ITEMS):
        stat = monitel.Stat(f"x{number}", TORCHS, 1e9)
        stat.add(0.25)
        stat.flush()
    monitel.unregister_event_handler(handle)
    entries = queue.queue.take(_ITEMS)
    mapping = found.mapping.mapping_of("cumulative", 0, "percentiles")
    resource = found.resources.Resource({})
    exporter = found.exporters.MetricRequests(mapping, lambda: 0, resource, _ignore, _ignore)

    def live() -> None:
        for begin in range(0, _ITEMS, 8):
            exporter.add(entries[begin : begin + 8])
        exporter.flush()

    return {"live": costing(live), "raw": costing(lambda: found.raw.raw_windows(entries, mapping, b""))}


def _ignore(*_arguments: object) -> None:
    pass


def main() -> None:
    """Live encoding of both kinds, events beside the SDK; then the raw forms."""
    found = parts()
    if found is None:
        Row("encoding an event", None).put()
        return
    of_events, of_windows = events(found), windows(found)
    what = "encoding an event with three attributes"
    report(what, race({"monitel": of_events["live"], _SDK: of_events["sdk"]}, rounds=11), {_SDK: 0.6})
    report("encoding a window of six aggregations", race({"monitel": of_windows["live"]}, rounds=11), {})
    report("raw form of an event", race({"monitel": of_events["raw"]}, rounds=11), {})
    report("raw form of a window", race({"monitel": of_windows["raw"]}, rounds=11), {})


if __name__ == "__main__":
    main()
