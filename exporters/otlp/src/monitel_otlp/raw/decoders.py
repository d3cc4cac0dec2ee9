"""Decoders of raw items, which build requests with the code that encodes live items."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.messages.attributes import add_attributes
from monitel_otlp.messages.request_builder import BYTES_PER_REQUEST, RequestBuilder
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.points import Points, write_queue_size
from monitel_otlp.metrics.requests import WINDOWS_PER_STEP
from monitel_otlp.metrics.window_row import series_of
from monitel_otlp.raw.forms import VERSION
from monitel_otlp.threads.worker import Pace
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.raw.forms import Header

_log = logging.getLogger("monitel.otlp")


class Decoder(Protocol):
    """Builds requests from the items of one raw segment. It receives every block, beginning with the first."""

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return the requests of a block. Their ``items`` do not count items that cannot be decoded."""


def decoders() -> Mapping[str, Callable[[Header], Decoder]]:
    """Return the functions that make a decoder from the header of a segment, by kind."""
    return {
        "windows": _WindowDecoder,
        "events": lambda header: _ItemDecoder(header, "logs", EventMapping.write, scope_of=EventMapping.scope_of),
        "ranges": lambda header: _ItemDecoder(header, "traces", RangeMapping.write, synthetic=-1),
    }


def _fields(header: Header) -> tuple[bytes, tuple[str, str, str], int, Any]:
    _, version, resource, scope, created_ns, state = header
    if version != VERSION:
        raise ValueError(
            f"expected version {VERSION} of raw items, got {version!r}: use another version of monitel-otlp"
        )
    return resource, scope, created_ns, state


class _ItemDecoder:
    """Decodes events or ranges."""

    def __init__(
        self,
        header: Header,
        signal: str,
        write: Callable[[Any, Any], None],
        *,
        synthetic: int | None = None,
        scope_of: Callable[[Any], tuple[str, str, str] | None] = lambda _: None,
    ) -> None:
        resource, scope, created_ns, _ = _fields(header)
        self._pace = Pace()  # a pipeline may decode beside a training loop
        self._requests: list[FrozenRequest] = []
        self._synthetic = synthetic
        self._builder = RequestBuilder(
            signal, resource, scope, write, self._requests.append, scope_of=scope_of, created_ns=created_ns
        )

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        for plain in items:
            self._pace.pause()
            try:
                self._builder.add(plain, synthetic=self._synthetic is not None and plain[self._synthetic])
            except Exception:
                _log.debug("an item on disk cannot be decoded", exc_info=True)
        self._builder.flush()
        requests = self._requests.copy()
        self._requests.clear()
        return requests


class _WindowDecoder:
    """Decodes windows. The state of their series continues from block to block."""

    def __init__(self, header: Header) -> None:
        self._resource, self._scope, self._created_ns, state = _fields(header)
        self._pace = Pace()
        mapping, self._waiting, series = state
        self._mapping = WindowMapping(*mapping)
        self._series = [series_of(plain) for plain in series]

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        requests = []
        points = Points(self._scope)
        for begin in range(0, len(items), WINDOWS_PER_STEP):
            self._pace.pause()
            part = items[begin : begin + WINDOWS_PER_STEP]
            self._mapping.write_plain([(plain, self._series[plain[0]]) for plain in part], points)
            if points.bytes >= BYTES_PER_REQUEST:
                requests.append(self._frozen(points))
                points = Points(self._scope)
        if points.windows:
            requests.append(self._frozen(points))
        return requests

    def _frozen(self, points: Points) -> FrozenRequest:
        metrics = ResourceMetrics.FromString(self._resource)
        write_queue_size(metrics, self._waiting, self._mapping.start_ns, self._created_ns)
        rank = [pair for pair in self._series[0].attributes if pair.key == "training.rank"]  # as on every point
        add_attributes(metrics.scope_metrics[-1].metrics, rank)
        return points.frozen(metrics, self._created_ns)
