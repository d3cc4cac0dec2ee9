"""Costs of one to 64 ranks: requests, bytes, CPU and series. The documentation extrapolates from here.

Each run is one of ``compose/simulate.py`` against a receiver that looks at all it gets. Windows last a
second instead of a minute, so that there are many of them soon; only the number of requests per minute takes minutes.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from row import Row

_RANKS = (1, 4, 16, 64)
_STATS = (10, 50, 200)  # of one rank
_WINDOWS = 10
_MINUTES = 4
_NAMED = 3  # Stats of a rank with separate names; the others share one name, with an attribute
_OFTEN_MS = 200  # between two requests: so most carry no window, and the others one of each Stat, as with long windows
_ROOT = Path(__file__).parents[3]
_COMPRESSION, _INTERVAL = "OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_METRIC_EXPORT_INTERVAL"


@dataclass
class Cost:
    """Costs of a run."""

    windows: int  # how many there were
    cpu_ns: float  # CPU time of the ranks' delivery threads
    connections: int  # opened, and kept
    sizes: list[tuple[int, int]]  # of each request with metrics: windows in it, and bytes on the wire
    others: list[int]  # bytes of each other request
    series: list[int]  # of each rank, as Prometheus counts them


def simulate(ranks: int, stats: int, windows: int, seconds: float, url: str) -> tuple[int, float]:
    """Send the windows of a job, and return their number and the CPU time of the threads that have delivered them."""
    sizes = (f"--{name}={value}" for name, value in [("ranks", ranks), ("stats", stats), ("windows", windows)])
    command = [sys.executable, str(_ROOT / "compose" / "simulate.py"), *sizes, f"--window={seconds}"]
    printed = subprocess.run([*command, f"--endpoint={url}"], check=True, capture_output=True, text=True).stdout
    stages = 6 if ranks > 1 else 5
    return ranks * windows * (stats + stages), 1e9 * float(printed.split(" s of CPU")[0].split()[-1])


def cost(ranks: int, stats: int, windows: int = _WINDOWS, seconds: float = 1.0) -> Cost:
    """Simulate so many windows of so many seconds, and look at what has arrived."""
    from tests.support.receiver import Receiver

    with Receiver() as receiver:
        number, cpu_ns = simulate(ranks, stats, windows, seconds, receiver.url)
        return Cost(
            windows=number,
            cpu_ns=cpu_ns,
            connections=len(receiver.connections),
            sizes=[(windows_in(each), on_the_wire(each)) for each in receiver.of("metrics")],
            others=[on_the_wire(each) for each in receiver.of("logs")],
            series=series(receiver),
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


def series(receiver: Any) -> list[int]:
    """Series of each rank: a histogram has one for each bucket, its sum and its count; target_info is one."""
    found: Counter[int] = Counter()
    seen = set()
    for point in receiver.all_points():
        rank = point.resource["training.rank"]
        identity = (rank, point.metric, tuple(sorted(point.attributes.items())))
        if identity not in seen:
            seen.add(identity)
            found[rank] += len(point.proto.bucket_counts) + 2 if point.kind == "histogram" else 1
    return [number + 1 for number in found.values()]


def put(who: str, found: Cost) -> None:
    sent = sum(size for _, size in found.sizes) + sum(found.others)
    Row(f"{who}: requests a second", (len(found.sizes) + len(found.others)) / _WINDOWS, "").put()
    Row(f"{who}: bytes a second", sent / _WINDOWS, "B").put()
    Row(f"{who}: CPU a window", found.cpu_ns / found.windows).put()
    Row(f"{who}: series", sum(found.series), "").put()
    Row(f"{who}: connections", found.connections, "").put()


def put_minutes(ranks: int) -> None:
    """Count the requests of windows of a minute, as they are usual."""
    found = cost(ranks, 50, _MINUTES, 60.0)
    per_minute = ranks * _MINUTES
    who = f"{ranks} ranks of 50 Stats and windows of a minute"
    Row(f"{who}: requests of a rank in a minute", (len(found.sizes) + len(found.others)) / per_minute, "").put()
    Row(f"{who}: of these without windows", sum(not windows for windows, _ in found.sizes) / per_minute, "").put()
    Row(f"{who}: bytes", (sum(size for _, size in found.sizes) + sum(found.others)) / per_minute, "B").put()
    Row(f"{who}: CPU", found.cpu_ns / per_minute).put()


def put_parts(what: str, cpu_of_a_window: float) -> None:
    """Measure the parts of a request, which carries at most one window of each Stat."""
    named, more = cost(1, _NAMED), cost(1, 50)
    empty = median(size for windows, size in named.sizes if not windows)
    with_named = median(size for windows, size in named.sizes if windows == _NAMED)
    with_more = median(size for windows, size in more.sizes if windows == 50)
    Row(f"{what}: a request without windows", empty, "B").put()
    Row(f"{what}: one more window, with a separate name", (with_named - empty) / _NAMED, "B").put()
    Row(f"{what}: a window more, of a name with attributes", (with_more - with_named) / (50 - _NAMED), "B").put()
    Row(f"{what}: a request of one event", median(named.others), "B").put()
    idle_ns = named.cpu_ns - cpu_of_a_window * named.windows
    Row(f"{what}: CPU of a request without windows", idle_ns / len(named.sizes)).put()


def main() -> None:
    """Measure by ranks, then by Stats, then with windows of a minute, then the parts of requests, then compressed."""
    for ranks in _RANKS:
        put(f"{ranks} rank{'s' if ranks > 1 else ''} of 50 Stats", cost(ranks, 50))
    by_stats = [cost(1, stats) for stats in _STATS]
    for stats, found in zip(_STATS, by_stats, strict=True):
        put(f"1 rank of {stats} Stats", found)
    cpu, _ = linear_regression([each.windows for each in by_stats], [each.cpu_ns for each in by_stats])
    Row("CPU that a window adds", cpu).put()
    put_minutes(_RANKS[-1])
    os.environ[_INTERVAL] = str(_OFTEN_MS)
    put_parts("plain", cpu)
    os.environ[_COMPRESSION] = "gzip"
    put_parts("gzip", cpu)


if __name__ == "__main__":
    try:
        import monitel_otlp  # noqa: F401  only to see whether it is there
    except ImportError:
        Row("what many ranks cost", None).put()
    else:
        sys.path.insert(0, str(_ROOT))
        main()
