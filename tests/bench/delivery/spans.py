"""Ranges as spans: what they cost the thread that runs them, and the delivery thread, beside OpenTelemetry's spans."""

import tempfile
from typing import Any

from race import optional, race, timed
from row import Row, report

from monitel.profiler import record_function

_RANGES = 500  # a round; the queues are emptied between rounds
_EXPORTED_BUDGET_NS = 5e3
_MANY = 10**9  # a budget that no round exhausts
_PEER = "OTel start_as_current_span"
_RUN = "for _ in range:\n    with record_function('op'): pass"


def emptied(otel: Any, otlp: Any = None) -> dict[str, Any]:
    """The names of a round, which begins with empty queues."""
    otel.force_flush()
    if otlp is not None:
        otlp.force_flush()
    tracer = otel.get_tracer("bench")
    return {"range": range(_RANGES), "record_function": record_function, "start": tracer.start_as_current_span}


def otel_provider(drop: Any) -> Any:
    """A TracerProvider with the SDK's own batch processor."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(drop))
    return provider


def dropping() -> Any:
    """An exporter of the SDK's that has everything encoded as OTLP, and drops it."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Drop(SpanExporter):
        def export(self, spans: Any) -> Any:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    return Drop()


def callers_side(otel: Any, otlp: Any) -> None:
    """A range that nobody listens to, one that is exported, one that is folded."""
    peer = timed("for _ in range:\n    with start('op'): pass", lambda: emptied(otel), _RANGES)
    idle = {"monitel": timed(_RUN, lambda: emptied(otel), _RANGES), _PEER: peer}
    report("range, nobody listens", race(idle), {_PEER: None})
    for what in ("spans", "step_traces"):
        spans = {"budget": _MANY, "step_traces": what == "step_traces"}
        with (
            tempfile.TemporaryDirectory() as folder,
            otlp.configure(spool_dir=folder, export_interval=3600.0, spans=spans) as pipeline,
        ):
            own = timed(_RUN, lambda: emptied(otel, pipeline), _RANGES)
            costs = race({"monitel": own, _PEER: peer}, rounds=21)
        report(f"range, exported ({what})", costs, {_PEER: None}, most=_EXPORTED_BUDGET_NS)
    with (
        tempfile.TemporaryDirectory() as folder,
        otlp.configure(spool_dir=folder, export_interval=3600.0, spans={"budget": 1}),
    ):
        costs = race({"monitel": timed(_RUN, lambda: emptied(otel), _RANGES), _PEER: peer}, rounds=21)
    report("range, beyond the budget", costs, {_PEER: None}, most=_EXPORTED_BUDGET_NS)


def delivery(drop: Any) -> None:
    """From an ended range by the journal to an encoded request: CPU for a span."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from monitel.blackbox.box import Box
    from monitel_otlp.export.sender import Outbox
    from monitel_otlp.messages.request import Encoder, write_spans
    from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

    box = Box(None, None, {})
    queued = QueuedSpans(SpanSettings(budget=_MANY), first=lambda: True)
    outbox = Outbox(box.journals["traces"], Encoder("traces", b"", write_spans))
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("bench")

    def deliver() -> None:
        queued.prepare(last=False)
        queued.flush(box.journals["traces"], box.journals["steps"])
        while (request := outbox.next()) is not None:
            outbox.settle(request.number)

    def ours() -> dict[str, Any]:
        queued.listen()
        for _ in range(_RANGES):
            with record_function("op", {"batch": 32}):
                pass
        queued.close()
        return {"deliver": deliver}

    def theirs() -> dict[str, Any]:
        kept.clear()
        for _ in range(_RANGES):
            with tracer.start_as_current_span("op", attributes={"batch": 32, "thread.id": 1, "thread.name": "Main"}):
                pass
        return {"export": drop.export, "spans": kept.get_finished_spans()}

    contenders = {
        "monitel": timed("deliver()", ours, _RANGES),
        "OTel encode_spans": timed("export(spans)", theirs, _RANGES),
    }
    report("delivery of a span, without a network", race(contenders, rounds=21), {"OTel encode_spans": None})


def main() -> None:
    """Measure where everything is installed."""
    otlp = optional("monitel_otlp")
    if otlp is None:
        Row("range, exported", None).put()
        return
    drop = dropping()
    otel = otel_provider(drop)
    callers_side(otel, otlp)
    delivery(drop)
    otel.shutdown()


if __name__ == "__main__":
    main()
