"""A run of all four distributions in the environment of the interpreter: ``python smoke.py c|py|any``.

It uses what is installed, and no file of the repository. The argument is the twin of the window that is expected.
"""

import http.server
import subprocess
import sys
import sysconfig
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-untyped]

import monitel
import monitel_otel
import monitel_otlp
import monitel_tensorboard


class _Receiver(http.server.BaseHTTPRequestHandler):
    names: set[str] = set()  # noqa: RUF012 - the whole process has one

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/v1/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.names.update(metric.name for scope in resource.scope_metrics for metric in scope.metrics)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def check(name: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise SystemExit(f"{name}: expected {expected!r}, got {actual!r}")


def command(*arguments: str) -> str:
    script = Path(sys.executable).with_name("monitel")
    ended = subprocess.run([script, *arguments], check=False, capture_output=True, text=True, timeout=60)
    check(f"status of monitel {arguments}: {ended.stderr}", 0, ended.returncode)
    return ended.stdout


def record(url: str, folder: str) -> None:
    events: list[str] = []
    with (
        monitel.register_event_handler(lambda event: events.append(event.name)),
        monitel_tensorboard.install(folder),
        monitel_otlp.configure(service_name="smoke", endpoint=url) as pipeline,
    ):
        loss = monitel.stat("loss", [monitel.MEAN, monitel.COUNT])
        for step in range(10):
            monitel.set_step(step)
            loss.add(1 / (step + 1))
        monitel.emit("checkpoint.written", step=9)
        loss.flush()
        check("delivery", expected=True, actual=pipeline.force_flush())
    check("events", expected=True, actual={monitel.STAT_EVENT, "checkpoint.written"} <= set(events))


def main(twin: str) -> None:
    if twin != "any":
        check("twin", twin, "c" if "monitel.stats._window_c" in sys.modules else "py")
    for name in ("monitel", "monitel-otel", "monitel-otlp", "monitel-tensorboard"):
        check(f"version of {name}", monitel.__version__, version(name))
    check("version of monitel_otel", monitel.__version__, monitel_otel.__version__)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as folder:
        record(url, folder)
        file = max(Path(folder).rglob("*tfevents*"))
        tags = {value.tag for event in EventFileLoader(str(file)).Load() for value in event.summary.value}
    check("tags in the TensorBoard file", expected=True, actual=any(tag.startswith("loss/mean") for tag in tags))
    check("metrics at the receiver", expected=True, actual={"loss.mean", "loss.count"} <= _Receiver.names)
    check("monitel --help", expected=True, actual="doctor" in command("--help"))
    check("monitel doctor", expected=True, actual="FAILED" not in command("doctor", "--endpoint", url))
    server.shutdown()
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    check("GIL switched on", not free_threaded, getattr(sys, "_is_gil_enabled", lambda: True)())


if __name__ == "__main__":
    main(sys.argv[1])
