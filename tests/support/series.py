"""Samples of a metric by series, as a backend that keeps only samples sees them."""

from itertools import pairwise

from tests.support.inbox import Inbox, Point

_MILLISECOND_NS = 1_000_000


def increase(receiver: Inbox, metric: str) -> float:
    """Return the sum of the increases between the samples of all series, as a backend with samples only computes it."""
    series: dict[str, list[Point]] = {}
    for point in [*receiver.start_points(metric), *receiver.points(metric)]:
        series.setdefault(repr((point.resource, point.attributes)), []).append(point)
    total = 0.0
    for points in series.values():
        points.sort(key=lambda point: point.time_ns)
        for before, after in pairwise(points):
            assert after.time_ns - before.time_ns >= _MILLISECOND_NS
            total += after.value - before.value
    return total


def of_parent_and_child(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """Return the points of the process that has sent the first one, and those of its forked child."""
    pid = points[0].resource["process.pid"]
    return [each for each in points if each.resource["process.pid"] == pid], [
        each for each in points if each.resource["process.pid"] != pid
    ]
