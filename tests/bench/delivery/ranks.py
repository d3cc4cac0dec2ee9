"""Costs of the ranks of a job: requests, bytes and CPU. The documentation extrapolates from here to many ranks.

Each run is one of ``compose/simulate.py`` against a receiver that looks at all it gets. Windows last a
second instead of a minute, so that there are many of them soon; only the number of requests per minute takes minutes.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from row import Row

_ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(_ROOT))

from tests.support.receiver import Receiver  # noqa: E402  found in the folder above

_RANKS, _STATS, _MINUTES = 64, 50, 4
_WINDOWS = 10  # of a second
_NAMED = 3  # Stats of a rank with separate names; the others share one name, with an attribute
_OFTEN_MS = 200  # between two requests: so most carry no window, and the others one of each Stat, as with long windows
_COMPRESSION, _INTERVAL = "OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_METRIC_EXPORT_INTERVAL"


@dataclass
class Cost:
    """Costs of a run."""

    cpu_ns: float  # CPU time of the ranks' delivery threads
    connections: int  # opened, and kept
    sizes: list[tuple[int, int]]  # of each request with metrics: windows in it, and bytes on the wire
    others: list[int]  # bytes of each other request


def cost(ranks: int, stats: int, windows: int = _WINDOWS, seconds: float = 1.0) -> Cost:
    """Simulate so many windows of so many seconds, and look at what has arrived."""
    sizes = (f"--{name}={value}" for name, value in [("ranks", ranks), ("stats", stats), ("windows", windows)])
    command = [sys.executable, str(_ROOT / "compose" / "simulate.py"), *sizes, f"--window={seconds}"]
    with Receiver() as receiver:
        command.append(f"--endpoint={receiver.url}")
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return Cost(
            cpu_ns=1e9 * float(printed.split(" s of CPU")[0].split()[-1]),
            connections=len(receiver.connections),
            sizes=[(windows_in(each), on_the_wire(each)) for each in receiver.of("metrics")],
            others=[on_the_wire(each) for each in receiver.of("logs")],
        )


def on_the_wire(request: Any) -> int:
    """Bytes of a request over HTTP: its line, its headers and its body; what TCP adds is not among them."""
    headers = sum(len(f"{name}: {value}\r\n") for name, value in request.headers.items())
    return len(f"POST {request.path} HTTP/1.1\r\n\r\n") + headers + len(request.body)


def windows_in(request: Any) -> int:
    """Return the number of windows in a request: the count of each is one point that is not zero."""
    metrics = (metric for scope in request.message.resource_metrics[0].scope_metrics for metric in scope.metrics)
    counts = (each for each in metrics if each.unit == "{sample}" and each.name.endswith(".count"))
    return sum(bool(point.as_int or point.as_double) for each in counts for point in each.sum.data_points)


def put_minutes() -> None:
    """Count the requests of windows of a minute, as they are usual."""
    found = cost(_RANKS, _STATS, _MINUTES, 60.0)
    per_minute = _RANKS * _MINUTES
    who = f"{_RANKS} ranks of {_STATS} Stats and windows of a minute"
    Row(f"{who}: requests of a rank in a minute", (len(found.sizes) + len(found.others)) / per_minute, "").put()
    Row(f"{who}: bytes", (sum(size for _, size in found.sizes) + sum(found.others)) / per_minute, "B").put()
    Row(f"{who}: CPU", found.cpu_ns / per_minute).put()
    Row(f"{who}: connections", found.connections, "").put()


def put_parts(what: str) -> None:
    """Measure the parts of a request, which carries at most one window of each Stat."""
    named, more = cost(1, _NAMED), cost(1, _STATS)
    empty = median(size for windows, size in named.sizes if not windows)
    with_named = median(size for windows, size in named.sizes if windows == _NAMED)
    with_more = median(size for windows, size in more.sizes if windows == _STATS)
    Row(f"{what}: a request without windows", empty, "B").put()
    Row(f"{what}: one more window, with a separate name", (with_named - empty) / _NAMED, "B").put()
    Row(f"{what}: a window more, of a name with attributes", (with_more - with_named) / (_STATS - _NAMED), "B").put()
    Row(f"{what}: a request of one event", median(named.others), "B").put()


if __name__ == "__main__":
    put_minutes()
    os.environ[_INTERVAL] = str(_OFTEN_MS)
    put_parts("plain")
    os.environ[_COMPRESSION] = "gzip"
    put_parts("gzip")
