"""Telemetry at the backend, decoded with the official messages, by process and series."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.inbox import CUMULATIVE, attributes_of, points_of, records_of, spans_of
from tests.support.receiver import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.nightly.kills.backend import Arrival
    from tests.support.inbox import Point, Record

#: The aggregations of a Stat, which are the last part of the names of its metrics.
_SUFFIXES = frozenset({"count", "sum", "min", "max", "value", "mean", "stddev", "histogram"})


class ProcessId(NamedTuple):
    """A process of a job: the number of the job, and that of the process."""

    job: int
    pid: int


@dataclass
class Arrived:
    """Telemetry of one process at the backend, each request once.

    Attributes:
        windows: The points of each Stat's series by time: aggregation -> point.
        starts: The start points of each series' sums: (time, aggregation, start).
        points: The points of counters and logged numbers by name, in order of arrival.
        records: The log records.
        ranges: Numbers of the spans by name.
        repeated: Number of requests that arrived again, by signal.
    """

    windows: dict[str, dict[int, dict[str, Point]]] = field(default_factory=lambda: defaultdict(dict))
    starts: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    points: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    records: list[Record] = field(default_factory=list)
    ranges: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    repeated: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def decode(arrivals: Iterable[Arrival]) -> dict[ProcessId, Arrived]:
    """Return the telemetry of each process. A request that arrived twice, byte for byte, counts once."""
    found: dict[ProcessId, Arrived] = defaultdict(Arrived)
    seen: set[tuple[str, bytes]] = set()
    for arrival in arrivals:
        message = MESSAGES[arrival.signal][0].FromString(arrival.body)
        key = arrival.signal, arrival.body
        if key in seen:
            for process in {_process(_resource(each)) for each in _resources(message)}:
                found[process].repeated[arrival.signal] += 1
            continue
        seen.add(key)
        if arrival.signal == "metrics":
            for point in points_of(message):
                _add_point(found[_process(point.resource)], point)
        elif arrival.signal == "logs":
            for record in records_of(message):
                found[_process(record.resource)].records.append(record)
        else:
            for span in spans_of(message):
                if span.name.startswith("range."):
                    found[_process(span.resource)].ranges[span.name].append(_number_of(span.attributes))
    return found


def _resources(message: Any) -> Any:
    return getattr(message, message.DESCRIPTOR.fields[0].name)


def _resource(each: Any) -> dict[str, Any]:
    return attributes_of(each.resource.attributes)


def _process(resource: dict[str, Any]) -> ProcessId:
    return ProcessId(resource.get("job", -1), resource.get("process.pid", -1))


def _number_of(attributes: dict[str, Any]) -> int:
    return int(attributes["number"])


def _add_point(arrived: Arrived, point: Point) -> None:
    series, _, suffix = point.metric.rpartition(".")
    if suffix not in _SUFFIXES:
        arrived.points[point.metric].append(point)
    elif suffix in {"count", "sum"} and not point.value and point.temporality == CUMULATIVE:
        arrived.starts[series].append(point)
    elif suffix in (others := arrived.windows[series].setdefault(point.time_ns, {})):
        arrived.problems.append(
            f"{point.metric} has two points at {point.time_ns}: {others[suffix].value} {point.value}"
        )
    else:
        others[suffix] = point
