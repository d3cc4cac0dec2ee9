"""Raw forms: queued items as plain values for a raw segment of the spool, and the requests that they become.

At the end of the process there may be no time to encode what waits. Each item then goes to disk as a tuple of exact
built-in values, with the resource and the state of its kind once in the header. Decoders turn them into requests with
the code that encodes live items.

A header is a tuple: kind, version, resource (a serialized message), scope (name and version), creation time in Unix
ns, and the state of the kind.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import monitel
from monitel_otlp.gil import Pace
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.metrics.mapping import mapping_of
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.series_state import plain_series, series_of
from monitel_otlp.metrics.window_row import plain_window
from monitel_otlp.open_request import BYTES_PER_REQUEST, OpenRequest
from monitel_otlp.sdk.exporters import WINDOWS_PER_STEP, BatchExporter, alone
from monitel_otlp.sdk.plain_parts import Owners, owner_of
from monitel_otlp.sdk.plain_records import plain_record, record_of
from monitel_otlp.sdk.plain_spans import plain_span, span_of
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.request import FrozenRequest

_log = logging.getLogger("monitel.otlp")

_VERSION = 1

Header = tuple[Any, ...]


class Decoder(Protocol):
    """Makes requests of the items of one raw segment. It gets every block, from the first one on."""

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return the requests of a block. Items that cannot be decoded are missing in the requests' ``items``."""


class RawForm:
    """The raw form of some items of one kind.

    Attributes:
        header: Plain values for the beginning of the segment.
        items: Plain values of each item that has them, in order.
        lost: Number of items that cannot be written as plain values.
    """

    def __init__(
        self, kind: str, resource: bytes, items: Iterable[Any], plain: Callable[[Any], Any], state: Any
    ) -> None:
        self.items: list[Any] = []
        self.lost = 0
        for item in items:
            try:
                self.items.append(plain(item))
            except Exception:
                self.lost += 1
        scope = "monitel", monitel.__version__
        self.header: Header = (kind, _VERSION, resource, scope, time.time_ns(), state)
        if self.lost:
            _log.warning("%d of the %s that are left cannot be written to disk and are dropped", self.lost, kind)


def raw_events(items: Sequence[Any], mapping: EventMapping, resource: bytes) -> RawForm:
    """Return the raw form of queued events, :class:`monitel_otlp.logs.mapping.LoggedEvent`."""
    return RawForm("events", resource, items, mapping.plain, None)


def raw_ranges(items: Sequence[Any], mapping: RangeMapping, resource: bytes) -> RawForm:
    """Return the raw form of ended ranges; each is an ``Ended``, or one with the attributes of a synthetic span."""

    def plain(item: Any) -> Any:
        synthetic = len(item) == 2  # noqa: PLR2004  a range and its attributes
        return mapping.plain(*item) if synthetic else mapping.plain(item)

    return RawForm("ranges", resource, items, plain, None)


def raw_windows(items: Sequence[Any], mapping: WindowMapping, resource: bytes) -> RawForm:
    """Return the raw form of queued windows, with the state of their series at this moment."""
    numbers: dict[Any, int] = {}
    for entry in items:
        numbers.setdefault(entry.series, len(numbers))
    state = mapping.plain, len(items), [plain_series(series) for series in numbers]
    return RawForm("windows", resource, items, lambda entry: plain_window(entry, numbers[entry.series]), state)


def raw_records(items: Sequence[Any]) -> RawForm:
    """Return the raw form of log records of the SDK."""
    owners = Owners()
    return RawForm("records", b"", items, lambda record: plain_record(record, owners), owners.plain)


def raw_spans(items: Sequence[Any]) -> RawForm:
    """Return the raw form of spans of the SDK."""
    owners = Owners()
    return RawForm("spans", b"", items, lambda span: plain_span(span, owners), owners.plain)


def decoders() -> Mapping[str, Callable[[Header], Decoder]]:
    """Return for each kind the function that makes a decoder from a segment's header."""
    return {
        "windows": _WindowDecoder,
        "events": lambda header: _OpenDecoder(header, "logs", EventMapping.write),
        "ranges": lambda header: _OpenDecoder(header, "traces", RangeMapping.write, synthetic=-1),
        "records": lambda header: _BatchDecoder(header, "logs", record_of),
        "spans": lambda header: _BatchDecoder(header, "traces", span_of),
    }


def _fields(header: Header) -> tuple[bytes, tuple[str, str], int, Any]:
    _, version, resource, scope, created_ns, state = header
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION} of raw items, got {version!r}: use a newer monitel-otlp")
    return resource, scope, created_ns, state


class _OpenDecoder:
    """Decodes events or ranges."""

    def __init__(
        self, header: Header, signal: str, write: Callable[[Any, Any], None], synthetic: int | None = None
    ) -> None:
        resource, scope, created_ns, _ = _fields(header)
        self._pace = Pace()  # a pipeline may decode beside a training loop
        self._requests: list[FrozenRequest] = []
        self._synthetic = synthetic
        self._open = OpenRequest(signal, resource, scope, write, self._requests.append, created_ns=created_ns)

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        for plain in items:
            self._pace.pause()
            try:
                self._open.add(plain, synthetic=self._synthetic is not None and plain[self._synthetic])
            except Exception:
                _log.debug("an item on disk cannot be decoded", exc_info=True)
        self._open.flush()
        return _taken(self._requests)


class _WindowDecoder:
    """Decodes windows; the state of their series goes on from block to block."""

    def __init__(self, header: Header) -> None:
        self._resource, (_, self._version), self._created_ns, state = _fields(header)
        self._pace = Pace()
        mapping, self._waiting, series = state
        self._mapping = mapping_of(*mapping)
        self._series = [series_of(plain) for plain in series]

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        requests = []
        points = Points(self._version)
        for begin in range(0, len(items), WINDOWS_PER_STEP):
            self._pace.pause()
            part = items[begin : begin + WINDOWS_PER_STEP]
            self._mapping.write_plain([(plain, self._series[plain[0]]) for plain in part], points)
            if points.bytes >= BYTES_PER_REQUEST:
                requests.append(self._frozen(points))
                points = Points(self._version)
        if points.windows:
            requests.append(self._frozen(points))
        return requests

    def _frozen(self, points: Points) -> FrozenRequest:
        return points.frozen(alone(self._resource, self._waiting, self._created_ns), self._created_ns)


class _BatchDecoder:
    """Decodes log records or spans of the SDK."""

    def __init__(self, header: Header, signal: str, make: Callable[[Any, Any], Any]) -> None:
        _, _, created_ns, owners = _fields(header)
        self._pace = Pace()
        self._owners = [owner_of(plain) for plain in owners]
        self._make = make
        self._requests: list[FrozenRequest] = []
        self._exporter = BatchExporter(signal, self._requests.append, _nothing, created_ns)

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        for plain in items:
            self._pace.pause()
            try:
                self._exporter.add(self._make(plain, self._owners))
            except Exception:
                _log.debug("an item on disk cannot be decoded", exc_info=True)
        self._exporter.flush()
        return _taken(self._requests)


def _taken(requests: list[FrozenRequest]) -> list[FrozenRequest]:
    taken = requests.copy()
    requests.clear()
    return taken


def _nothing(_signal: str, _reason: str, _items: int) -> None:
    """Ignore lost items: the spool counts what is missing in a block's requests."""
