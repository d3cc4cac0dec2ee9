"""CPU time of the whole process for a window or an event, until the backend answers, beside the plain OTel SDK.

Both send to a server in another process that takes everything. The SDK is given the same values: each sample into a
histogram, and what a window reports into the six instruments that carry it.
"""

import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from peers import six_instruments
from race import Contender, optional, race
from row import Row, report

import monitel
from monitel.stats.definition import TORCHS

_STATS = 500
_SAMPLES = 100
_DATA = {"epoch": 3, "loss": 0.25, "phase": "train", "done": True, "path": "/checkpoints/17/model", "bytes": 12_345}
_SDK = "OTel SDK, the same values"


class _Taker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet: the kernel would wait for the answer's second one

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


def take_everything(port: Connection) -> None:
    """A backend; it ends with its parent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taker)
    port.send(server.server_port)
    server.serve_forever()


def costing(record: Callable[[], object], flush: Callable[[], object]) -> Contender:
    """A contender: what a window costs the process, all its threads together."""

    def once() -> float:
        begin = time.process_time_ns()
        record()
        flush()
        return (time.process_time_ns() - begin) / _STATS

    return once


def of_monitel(pipeline: Any, samples: int) -> Contender:
    stats = [monitel.Stat(f"x{n}", TORCHS, 1e9) for n in range(_STATS)]

    def record() -> None:
        for stat in stats:
            for _ in range(samples):
                stat.add(0.25)
            stat.flush()

    return costing(record, lambda: pipeline.force_flush(10.0))


def of_sdk(provider: Any, samples: int) -> Contender:
    """So many samples for a histogram; a single one for the six instruments that carry what a window reports."""
    meter = provider.get_meter("bench")
    if samples == 1:
        writers = six_instruments(meter, (f"x{n}" for n in range(_STATS)))
    else:
        writers = [meter.create_histogram(f"x{n}").record for n in range(_STATS)]

    def record() -> None:
        for write in writers:
            for _ in range(samples):
                write(0.25)

    return costing(record, lambda: provider.force_flush(10_000))


def of_plain_sdk(url: str, samples: int) -> Contender | None:
    """The SDK with its own reader and exporter; None when it is not installed."""
    metrics, export = optional("opentelemetry.sdk.metrics"), optional("opentelemetry.sdk.metrics.export")
    http = optional("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    if metrics is None or export is None or http is None:
        return None
    exporter = http.OTLPMetricExporter(endpoint=f"{url}/v1/metrics")
    reader = export.PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    return of_sdk(metrics.MeterProvider([reader]), samples)


def of_events(emit: Callable[..., object], flush: Callable[[], object]) -> Contender:
    def record() -> None:
        for _ in range(_STATS):
            emit()

    return costing(record, flush)


def events_of_sdk(url: str) -> Contender | None:
    """The SDK with its own batch processor and exporter; None when it is not installed."""
    logs, export = optional("opentelemetry.sdk._logs"), optional("opentelemetry.sdk._logs.export")
    http = optional("opentelemetry.exporter.otlp.proto.http._log_exporter")
    if logs is None or export is None or http is None:
        return None
    provider = logs.LoggerProvider()
    exporter = http.OTLPLogExporter(endpoint=f"{url}/v1/logs")
    provider.add_log_record_processor(export.BatchLogRecordProcessor(exporter, schedule_delay_millis=3_600_000))
    emit = partial(provider.get_logger("bench").emit, event_name="epoch", timestamp=1, attributes=_DATA)
    return of_events(emit, provider.force_flush)


def measure(url: str, pipeline: Any) -> None:
    """Events, then windows of one sample, and of many."""
    contenders = {"monitel": of_events(partial(monitel.emit, "epoch", _DATA), lambda: pipeline.force_flush(10.0))}
    if (plain := events_of_sdk(url)) is not None:
        contenders[_SDK] = plain
    report("CPU for an event of six attributes, until it is acknowledged", race(contenders, rounds=11), {_SDK: None})
    for samples in (1, _SAMPLES):
        contenders = {"monitel": of_monitel(pipeline, samples)}
        if (plain := of_plain_sdk(url, samples)) is not None:
            contenders[_SDK] = plain
        what = f"CPU for a window of {samples} sample{'s' if samples > 1 else ''}, until it is acknowledged"
        report(what, race(contenders, rounds=11), {_SDK: None})


def main() -> None:
    """Both beside each other, with a backend that answers at once."""
    otlp = optional("monitel_otlp")
    if otlp is None:
        Row("CPU for a window, until it is acknowledged", None).put()
        return
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    backend = context.Process(target=take_everything, args=(there,), daemon=True)
    backend.start()
    url = f"http://127.0.0.1:{here.recv()}"
    settings = {"endpoint": url, "export_interval": 3600.0}
    with tempfile.TemporaryDirectory() as folder, otlp.configure(**settings, spool_dir=folder) as pipeline:
        measure(url, pipeline)
    backend.terminate()


if __name__ == "__main__":
    main()
