"""CPU and memory of a Collector that receives, batches and forwards the data of 64 ranks (see MONITEL_BACKENDS)."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from delivery.ranks import simulate
from processes import cpu_ns
from row import Row

_RANKS, _STATS, _WINDOWS = 64, 50, 10
_INTERVALS_MS = (5000, 200)  # between two requests: few, and many of which most carry no window
_ROOT = Path(__file__).parents[3]


def config(port: int, forward_to: str) -> dict[str, Any]:
    pipeline = {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["otlp_http"]}
    return {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "processors": {"batch": {}},
        "exporters": {"otlp_http": {"endpoint": forward_to}},
        "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"metrics": pipeline, "logs": pipeline}},
    }


def spent(program: Path, interval_ms: int) -> tuple[float, int, int]:
    """CPU time of the Collector, and the windows and requests that it took."""
    os.environ["OTEL_METRIC_EXPORT_INTERVAL"] = str(interval_ms)
    from tests.integration.services import Program, free_port
    from tests.support.receiver import Receiver

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
        path = Path(folder, "otelcol.yaml")
        path.write_text(json.dumps(config(port, receiver.url)), encoding="ascii")
        with Program([program, "--config", path], Path(folder, "log"), f"{url}/") as collector:
            assert collector.process is not None
            before = cpu_ns(collector.process.pid)
            windows, _ = simulate(_RANKS, _STATS, _WINDOWS, 1.0, url)
            receiver.wait_until(lambda: len(receiver.points("step.time.count")) == _RANKS * _WINDOWS)
            took = cpu_ns(collector.process.pid) - before
        attempts = {
            (point.resource["training.rank"], point.attributes["signal"]): point.proto.count
            for point in receiver.points("monitel.export.duration")  # the last ones
        }
    return took, windows, sum(attempts.values())


def main() -> None:
    """Measure with few requests and with many, of as many windows."""
    folder = os.environ.get("MONITEL_BACKENDS")
    if folder is None:
        Row("Collector, CPU a request (MONITEL_BACKENDS is not set)", None).put()
        return
    (few_ns, windows, few), (many_ns, _, many) = (spent(Path(folder, "otelcol"), each) for each in _INTERVALS_MS)
    a_request = (many_ns - few_ns) / (many - few)
    Row("Collector, CPU a request", a_request).put()
    Row("Collector, CPU a window more", (few_ns - a_request * few) / windows).put()


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    main()
