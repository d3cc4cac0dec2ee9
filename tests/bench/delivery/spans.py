"""Ranges as spans: what they cost the thread that runs them, and the delivery thread, beside OpenTelemetry's spans."""

import tempfile
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from race import race, timed
from row import report

import monitel_otlp
from monitel.blackbox.box import Box
from monitel.profiler import record_function
from monitel_otlp.export.sender import Outbox
from monitel_otlp.messages.request import write_spans
from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

_RANGES = 500  # a round; the queues are emptied between rounds
_EXPORTED_BUDGET_NS = 5e3
_DELIVERED_RATIO = 0.4
_MANY = 10**9  # a budget that no round exhausts
_PEER, _ENCODER = "OTel start_as_current_span", "OTel encode_spans"


class Drop(SpanExporter):
    """Have everything encoded as OTLP, and drop it."""

    def export(self, spans: Any) -> Any:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def callers_side() -> None:
    """Measure a range that is exported."""
    otel = TracerProvider()
    otel.add_span_processor(BatchSpanProcessor(Drop()))
    with (
        tempfile.TemporaryDirectory() as folder,
        monitel_otlp.configure(spool_dir=folder, export_interval=3600.0, spans={"budget": _MANY}) as pipeline,
    ):

        def emptied() -> dict[str, Any]:
            otel.force_flush()
            pipeline.force_flush()
            tracer = otel.get_tracer("bench")
            return {"range": range(_RANGES), "record_function": record_function, "start": tracer.start_as_current_span}

        contenders = {
            "monitel": timed("for _ in range:\n    with record_function('op'): pass", emptied, _RANGES),
            _PEER: timed("for _ in range:\n    with start('op'): pass", emptied, _RANGES),
        }
        costs = race(contenders, rounds=21)
    report("range, exported", costs, {_PEER: None}, most=_EXPORTED_BUDGET_NS)
    otel.shutdown()


def delivery() -> None:
    """Measure the CPU for a span from an ended range by the journal to an encoded request."""
    box = Box(None, None, {})
    queued = QueuedSpans(SpanSettings(budget=_MANY), first=lambda: True)
    outbox = Outbox(box.journals["traces"], "traces", b"", write_spans)
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("bench")

    def deliver() -> None:
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
        return {"export": Drop().export, "spans": kept.get_finished_spans()}

    contenders = {
        "monitel": timed("deliver()", ours, _RANGES),
        _ENCODER: timed("export(spans)", theirs, _RANGES),
    }
    report("delivery of a span, without a network", race(contenders, rounds=21), {_ENCODER: _DELIVERED_RATIO})


if __name__ == "__main__":
    callers_side()
    delivery()
