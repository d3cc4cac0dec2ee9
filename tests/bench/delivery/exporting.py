"""CPU time of the whole process for an event, until a backend in another process answers, beside the OTel SDK."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from race import Contender, race
from row import report

import monitel
import monitel_otlp

_ITEMS = 500  # of a round
_HALF = 0.5
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
    """A contender: what an item costs the process, all its threads together."""

    def once() -> float:
        begin = time.process_time_ns()
        record()
        flush()
        return (time.process_time_ns() - begin) / _ITEMS

    return once


def events(url: str, pipeline: Any) -> dict[str, Contender]:
    provider = LoggerProvider()
    exporter = OTLPLogExporter(endpoint=f"{url}/v1/logs")
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=3_600_000))
    emit = partial(provider.get_logger("bench").emit, event_name="epoch", timestamp=1, attributes=_DATA)

    def repeated(emit: Callable[[], object]) -> Callable[[], object]:
        return lambda: [emit() for _ in range(_ITEMS)]

    own = repeated(partial(monitel.emit, "epoch", _DATA))
    return {
        "monitel": costing(own, lambda: pipeline.force_flush(10.0)),
        _SDK: costing(repeated(emit), provider.force_flush),
    }


def main() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    backend = context.Process(target=take_everything, args=(there,), daemon=True)
    backend.start()
    url = f"http://127.0.0.1:{here.recv()}"
    settings: dict[str, Any] = {"endpoint": url, "export_interval": 3600.0}
    with tempfile.TemporaryDirectory() as folder, monitel_otlp.configure(**settings, spool_dir=folder) as pipeline:
        costs = race(events(url, pipeline), rounds=11)
        report("CPU for an event of six attributes, until it is acknowledged", costs, {_SDK: _HALF})
    backend.terminate()


if __name__ == "__main__":
    main()
