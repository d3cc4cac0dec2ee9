"""Requests of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import monitel
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.open_request import OpenRequest, Requests
from monitel_otlp.sdk._compat import log_record_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.request import FrozenRequest


class EventRequests(Requests):
    """Puts events into requests of at most 500 log records or about 1 MiB.

    Args:
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        resource: The resource as a message, serialized.
    """

    def __init__(
        self,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        resource: bytes,
    ) -> None:
        self.mapping = EventMapping(log_record_limits())
        open_request = OpenRequest("logs", resource, ("monitel", monitel.__version__), self.mapping.write, put)
        super().__init__("an event", "logs", open_request, lost)

    def add(self, item: tuple[Any, ...]) -> None:
        """Encode one event, a :class:`monitel_otlp.logs.mapping.LoggedEvent`; never raises."""
        self._add(lambda: self.mapping.plain(item))
