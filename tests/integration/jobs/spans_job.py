"""One rank with step traces. It prints its notes: each range and span with its path, times and attributes.

Arguments: the number of steps in each part of the run. After each part the job reads lines. With ``flush SECONDS`` it
flushes, and prints whether everything was delivered; with any other line it goes on.
"""

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry.trace import Link, SpanContext, Status, StatusCode

import monitel
import monitel_otlp
from monitel.profiler import ranges, record_function
from monitel.profiler.ranges import Range

signal.alarm(120)  # the test waits for lines without a deadline
pipeline = monitel_otlp.configure(
    spool_dir="spool", spans={"step_traces": True}, service_name="job", run_events=False, export_interval=0.1
)
tracer = pipeline.tracer_provider.get_tracer("application")
paths = threading.local()  # the path of the innermost range of each thread: names, each with its number in its parent
numbers: dict[str, int] = {}
notes: dict[str, list[Any]] = {"ranges": [], "spans": []}


@contextmanager
def noted(name: str, args: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Record a range, and keep its path on a separate stack."""
    outer = getattr(paths, "current", [])
    key = json.dumps([monitel.get_step(), outer, name])
    number = numbers[key] = numbers.get(key, -1) + 1
    paths.current = [*outer, [name, number]]
    try:
        with record_function(name, args):
            yield
    finally:
        paths.current = outer


def note(ended: Range) -> None:
    error = sys.exc_info()[0]
    thread = {"thread.id": threading.get_native_id(), "thread.name": threading.current_thread().name}
    notes["ranges"].append(
        [paths.current, ended.step, ended.start_ns, ended.end_ns, thread, ended.args, error and error.__name__]
    )


def evaluate(step: int) -> None:
    """Start a span of the application with a link to its previous one, an event and a status."""
    before = notes["spans"][-1] if notes["spans"] else None
    links = []
    if before is not None:
        context = SpanContext(int(before["trace_id"], 16), int(before["span_id"], 16), is_remote=True)
        links = [Link(context, {"kind": "previous"})]
    with tracer.start_as_current_span("evaluate", links=links, attributes={"step": step}) as span:
        span.add_event("best", {"loss": 0.25})
        span.set_status(Status(StatusCode.ERROR, "not better"))
    context = span.get_span_context()
    found: Any = span  # the SDK's, which has its times
    notes["spans"].append(
        {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "start_ns": found.start_time,
            "end_ns": found.end_time,
            "step": step,
        }
    )


def write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(step: int) -> None:
    """Record the ranges of one step, one of them in another thread."""
    monitel.set_step(step)

    def load() -> None:
        with noted("load", {"files": ["a", "b"]}):
            pass

    loading = threading.Thread(target=load, name="loader")
    with noted("forward", {"batch": 32, "text": "straße"}):
        for layer in range(3):
            with noted("layer", {"index": layer, "rate": 0.5, "last": layer == 2}):
                pass
        loading.start()
        loading.join()
    with suppress(ValueError), noted("all_reduce"), noted("wait"):
        raise ValueError(step)


first = 0
with ranges.listen(ended=note):
    for steps in map(int, sys.argv[1:]):
        for step in range(first, first + steps):
            train(step)
        first += steps
        if len(sys.argv) == 2:  # else there is an outage, in which spans of the application may be lost
            evaluate(first)
        write_line("recorded")
        while (line := sys.stdin.readline()).startswith("flush "):
            write_line(str(pipeline.force_flush(float(line.split()[1]))))
write_line(f"{pipeline.shutdown(20.0)} {json.dumps(notes)}")
