"""Requests of ended ranges as spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel_otel.scope import SCOPE
from monitel_otlp.messages.request_builder import ItemRequests, RequestBuilder
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.traces.span_queue import Ended


class RangeRequests(ItemRequests):
    """Encodes ranges into requests of at most 500 spans or about 1 MiB.

    Args:
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        resource: The resource and its schema; see :func:`monitel_otlp.sdk.official_encoders.encode_resource`.
    """

    def __init__(
        self,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        resource: bytes,
    ) -> None:
        self.mapping = RangeMapping()
        builder = RequestBuilder("traces", resource, SCOPE, self.mapping.write, put)
        super().__init__("a range", "traces", builder, lost)

    def add(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> None:
        """Encode one range. Never raises.

        Args:
            ended: The range with the ids of its span.
            attributes: The attributes of a span that the pipeline has made itself (a folded span or a step). It
                is not an item.
        """
        self._add(lambda: self.mapping.plain(ended, attributes), synthetic=attributes is not None)
