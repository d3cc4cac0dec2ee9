"""CPU for a span, from an ended range by the journal to an encoded request, beside OpenTelemetry's spans."""

from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from race import race, timed
from row import report

from monitel.blackbox.box import Box
from monitel.profiler import record_function
from monitel_otlp.export.sender import Outbox
from monitel_otlp.messages.request import write_spans
from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

_RANGES = 500  # a round; the queues are emptied between rounds
_DELIVERED_RATIO = 0.4
_MANY = 10**9  # a budget that no round exhausts
_ENCODER = "OTel encode_spans"


class Drop(SpanExporter):
    """Have everything encoded as OTLP, and drop it."""

    def export(self, spans: Any) -> Any:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def main() -> None:
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
    main()
