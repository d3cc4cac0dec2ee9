"""Requests of events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import monitel
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.open_request import OpenRequest
from monitel_otlp.sdk._compat import log_record_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.request import FrozenRequest

_log = logging.getLogger("monitel.otlp")


class EventRequests:
    """Puts events into requests of at most 500 log records or about 1 MiB; for one thread at a time.

    An event that cannot be encoded is lost, and reported to ``lost`` with the reason ``encoding``.

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
        self._open = OpenRequest("logs", resource, ("monitel", monitel.__version__), self.mapping.write, put)
        self._lost = lost
        self._failed = False

    def add(self, item: tuple[Any, ...]) -> None:
        """Encode one event, a :class:`monitel_otlp.logs.mapping.LoggedEvent`; never raises."""
        try:
            self._open.add(self.mapping.plain(item))
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("an event cannot be encoded and is dropped (further ones are only counted)")
            self._lost("logs", "encoding", 1)

    def flush(self) -> None:
        """Put the events that are not in a request yet."""
        self._open.flush()
