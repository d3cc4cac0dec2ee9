"""The telemetry of a dead process, from its black box, as a spool.

The windows become a raw segment, which is decoded with the code for live windows: they continue the series of the dead
process, with its totals, start times and resource. The counters become one more point of each.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.messages.request import FrozenRequest, write_scope
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.rising_sums import RisingSums, Sent, Total
from monitel_otlp.metrics.window_row import plain_numbers, series_of
from monitel_otlp.raw.forms import VERSION
from monitel_otlp.spool.raw_segment import encode_blocks

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from monitel_otlp.black_box.contents import Contents
    from monitel_otlp.collection.death import Death
    from monitel_otlp.metrics.readings import PlainCounter
    from monitel_otlp.metrics.window_row import PlainWindow
    from monitel_otlp.spool.spool import Spool

_COUNTERS_PER_REQUEST = 500
_SIGNALS = {"events": "logs", "windows": "metrics"}


def write_spool(contents: Contents, death: Death | None, spool: Spool) -> int:
    """Write everything that a box holds, and the event of the death: of each signal the oldest first.

    Args:
        contents: The box.
        death: The death; None if the process has not died.
        spool: An empty spool.

    Returns:
        The number of items.

    Raises:
        OSError: The spool could not be written completely.
    """
    items = 0
    for request in (*contents.requests, *contents.parts):
        spool.append(request)
        items += request.items
    events = list(contents.events)
    if death is not None and "logs" not in contents.header.off:
        events.append(EventMapping().limited(death.event()))
    items += _append_raw(spool, "events", contents, events, None)
    if "metrics" in contents.header.off:
        return items
    windows, series = _windows(contents)
    state = (*contents.header.mapping,), len(windows), series
    items += _append_raw(spool, "windows", contents, windows, state)
    for body in _counter_requests(contents):
        spool.append(FrozenRequest("metrics", body, 0, _time_ns(contents)))
    return items


def _time_ns(contents: Contents) -> int:
    return contents.header.created_ns if contents.cut is None else contents.cut.time_ns


def _append_raw(spool: Spool, kind: str, contents: Contents, items: list[Any], state: Any) -> int:
    if not items:
        return 0
    header = kind, VERSION, contents.header.resource, tuple(contents.header.scope), _time_ns(contents), state
    blocks = encode_blocks(items)
    number = sum(of_block for _, of_block in blocks)
    if spool.append_raw(_SIGNALS[kind], header, blocks) < number:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return number


def _windows(contents: Contents) -> tuple[list[PlainWindow], list[Any]]:
    """Return the open windows as plain values, with the totals of their series up to each, and the series."""
    states = [series_of(state.plain) for state in contents.series]
    begins = [series.begin_ns for series in states]
    counts, sums = [state.count for state in contents.series], [state.sum for state in contents.series]
    windows = []
    for window in contents.windows:
        number, snapshot = window.stat.series, window.snapshot
        counts[number] += snapshot.count
        finite = states[number].finite(snapshot.sum)
        sums[number] += finite or 0.0
        begins[number] = min(begins[number] or snapshot.start_ns, snapshot.start_ns)
        suffixes = tuple(window.stat.suffixes)
        windows.append(plain_numbers(snapshot, number, suffixes, finite, counts[number], sums[number]))
    series = [
        (*state.plain[:9], begin_ns, *state.plain[10:]) for state, begin_ns in zip(contents.series, begins, strict=True)
    ]
    return windows, series


def _counter_requests(contents: Contents) -> Iterator[bytes]:
    """Yield the bodies of requests with the counters that have changed since their last point."""
    cut = contents.cut
    if cut is None:
        return
    earlier: dict[tuple[Hashable, int], Sent] = {}
    changed = []
    for number, counter in enumerate(cut.counters):
        *_, total, start_ns, sent = counter
        if sent is not None:
            earlier[number, start_ns] = Sent(*sent)
        if sent is None or total != sent[2]:
            changed.append((number, counter))
    sums = RisingSums(delta=WindowMapping(*contents.header.mapping).delta, earlier=earlier)
    for begin in range(0, len(changed), _COUNTERS_PER_REQUEST):
        yield _counter_request(contents, sums, changed[begin : begin + _COUNTERS_PER_REQUEST])


def _counter_request(contents: Contents, sums: RisingSums, counters: list[tuple[int, PlainCounter]]) -> bytes:
    message = ExportMetricsServiceRequest()
    resource_metrics = message.resource_metrics.add()
    resource_metrics.CopyFrom(ResourceMetrics.FromString(contents.header.resource))
    scope = resource_metrics.scope_metrics.add()
    scope_name, version, schema = contents.header.scope
    write_scope(scope, (scope_name, version, schema))
    points: dict[str, Any] = {}

    def points_of(name: str, unit: str, description: str) -> Any:
        if name not in points:
            points[name] = sums.add_metric(scope.metrics, name, unit, description)
        return points[name]

    for number, (*described, attributes, total, start_ns, _) in counters:
        pairs = [KeyValue.FromString(each) for each in attributes]
        sums.write(number, pairs, [Total(number, total, start_ns)], _time_ns(contents), partial(points_of, *described))
    return message.SerializeToString()
