"""Start points: points of value zero with which cumulative sums begin.

Without one, ``increase()`` in Prometheus misses the first value of a sum: it compares the samples that it has.
"""

from __future__ import annotations

MILLISECOND_NS = 1_000_000  #: Prometheus keeps the first of two points that are closer.
_EARLIEST_NS = 30 * 60 * 10**9  # Prometheus refuses samples that are an hour older than its latest one


def start_point_ns(start_ns: int, begin_ns: int, first_ns: int) -> int:
    """Return the time of the start point of a sum.

    It is at least 1 ms, and at most 30 minutes, before the first point, and not before the start time.

    Args:
        start_ns: Start time that the points carry, Unix ns; at least 1 ms before the first point.
        begin_ns: Time at which the sum was still zero, Unix ns.
        first_ns: Time of the first point, Unix ns.
    """
    return max(start_ns, min(begin_ns, first_ns - MILLISECOND_NS), first_ns - _EARLIEST_NS)
