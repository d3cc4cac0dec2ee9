"""Requests of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel_otel.scope import SCOPE
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.messages.request_builder import ItemRequests, RequestBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.messages.request import FrozenRequest


class EventRequests(ItemRequests):
    """Encodes events into requests of at most 500 log records or about 1 MiB.

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
        self.mapping = EventMapping()
        builder = RequestBuilder("logs", resource, SCOPE, self.mapping.write, put)
        super().__init__("an event", "logs", builder, lost)

    def add(self, item: tuple[Any, ...]) -> None:
        """Encode one event, a :class:`monitel_otlp.logs.mapping.LoggedEvent`. Never raises."""
        self._add(lambda: self.mapping.plain(item))
