"""Raw forms: queued items as plain values, for a raw segment of the spool.

At the end of the process there may not be enough time to encode all items. Each item is then written to disk as a
tuple of exact built-in values. The resource and the state that all items of one kind share are in the header, once.

A header is a tuple: kind, version, resource and its schema (a serialized message), scope (name, version and schema),
creation time in Unix ns, and the shared state.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from monitel_otel.scope import SCOPE
from monitel_otlp.metrics.window_row import plain_series, plain_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from monitel_otlp.logs.mapping import EventMapping
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.traces.mapping import RangeMapping

_log = logging.getLogger("monitel.otlp")

VERSION = 2

Header = tuple[Any, ...]


class RawForm:
    """The raw form of some items of one kind.

    Attributes:
        header: Plain values for the header of the segment. Complete when all items have been taken.
        items: The plain values of each item, in order. They are made when they are taken, so that only a part of
            100,000 items needs the memory for them.
        tried: Number of items taken, with those that are lost.
        lost: Number of items without plain values.
    """

    def __init__(
        self, kind: str, resource: bytes, items: Iterable[Any], plain: Callable[[Any], Any], state: Any
    ) -> None:
        self.header: Header = (kind, VERSION, resource, tuple(SCOPE), time.time_ns(), state)
        self.items: Iterable[Any] = self._take(items, plain)
        self.tried = self.lost = 0

    def _take(self, items: Iterable[Any], plain: Callable[[Any], Any]) -> Iterator[Any]:
        for item in items:
            self.tried += 1
            try:
                values = plain(item)
            except Exception:
                self.lost += 1
            else:
                yield values
        if self.lost:
            _log.warning("%d of the queued %s cannot be written to disk and are dropped", self.lost, self.header[0])


def raw_events(items: Iterable[Any], mapping: EventMapping, resource: bytes) -> RawForm:
    """Return the raw form of queued events, :class:`monitel_otlp.logs.mapping.LoggedEvent`."""
    return RawForm("events", resource, items, mapping.plain, None)


def raw_ranges(items: Iterable[Any], mapping: RangeMapping, resource: bytes) -> RawForm:
    """Return the raw form of ended ranges: each is an ``Ended``, or a pair with the attributes of a synthetic span."""

    def plain(item: Any) -> Any:
        synthetic = len(item) == 2  # noqa: PLR2004  a range and its attributes
        return mapping.plain(*item) if synthetic else mapping.plain(item)

    return RawForm("ranges", resource, items, plain, None)


def raw_windows(items: Sequence[Any], mapping: WindowMapping, resource: bytes) -> RawForm:
    """Return the raw form of queued windows, with the current state of their series."""
    numbers: dict[Any, int] = {}
    for entry in items:
        numbers.setdefault(entry.series, len(numbers))
    state = mapping.plain, len(items), [plain_series(series) for series in numbers]
    return RawForm("windows", resource, items, lambda entry: plain_window(entry, numbers[entry.series]), state)
