"""Start points: points of value zero with which cumulative sums begin.

Without one, ``increase()`` in Prometheus misses the first value of a sum: it compares the samples that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable

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


class Mapped(Protocol):
    """Has the time of the latest point of a pipeline, Unix ns."""

    newest_ns: int


_latest: dict[Hashable, Mapped] = {}  # the last pipeline of each resource in this process


def end_of_earlier_pipelines_ns(resource: Hashable, mapping: Mapped) -> int:
    """Return the time before which no point of a new pipeline starts; 0 if it is the first one of the resource.

    An earlier pipeline has exported the same series up to a millisecond before.
    """
    earlier, _latest[resource] = _latest.get(resource), mapping
    return 0 if earlier is None or not earlier.newest_ns else earlier.newest_ns + MILLISECOND_NS
