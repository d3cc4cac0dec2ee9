"""Building of requests: records of one resource and scope are added until the request is large enough."""

from __future__ import annotations

import logging
import time
from array import array
from typing import TYPE_CHECKING, Any

from monitel_otlp.messages.request import LEVELS, REQUESTS, FrozenRequest, UnfinishedRequest, write_scope

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.otlp")

RECORDS_PER_REQUEST = 500
BYTES_PER_REQUEST = 2**20


class RequestBuilder:
    """Builds requests of log records or spans with one resource.

    Args:
        signal: ``"logs"`` or ``"traces"``.
        resource: The resource and its schema; see :func:`monitel_otlp.messages.resource.encode_resource`.
        scope: Name, version and schema of the scope.
        write: Fills one new record from plain values.
        put: Receives each finished request.
        scope_of: Returns the scope of plain values that have another one; else None.
        created_ns: Creation time of the requests, Unix ns; None: the time at which each request is finished.
    """

    def __init__(
        self,
        signal: str,
        resource: bytes,
        scope: tuple[str, str, str],
        write: Callable[[Any, Any], None],
        put: Callable[[FrozenRequest], None],
        *,
        scope_of: Callable[[Any], tuple[str, str, str] | None] = lambda _: None,
        created_ns: int | None = None,
    ) -> None:
        self._signal = signal
        self._resource = resource
        self._scope = scope
        self._scope_of = scope_of
        self._write = write
        self._put = put
        self._created_ns = created_ns
        self._open()

    def add(self, plain: Any, *, synthetic: bool = False) -> None:
        """Add one record.

        Args:
            plain: The plain values of the record.
            synthetic: The pipeline has made the record itself, so it is not an item.

        Raises:
            Exception: The record cannot be encoded, and was not added.
        """
        scope = self._scope_of(plain) or self._scope
        records = self._records.get(scope)
        if records is None:
            records = self._records[scope] = self._open_scope(scope)
        record = records.add()
        try:
            self._write(plain, record)
            self._bytes += record.ByteSize()
        except BaseException:
            del records[-1]
            raise
        self._weights.append(0 if synthetic else 1)
        if synthetic:
            self._synthetic += 1
        if len(self._weights) >= RECORDS_PER_REQUEST or self._bytes >= BYTES_PER_REQUEST:
            self.flush()

    def flush(self) -> None:
        """Put the records that were added since the last request."""
        if (request := self.unfinished()) is None:
            return
        created_ns = time.time_ns() if self._created_ns is None else self._created_ns
        self._open()
        signal, body, items, weights, synthetic = request
        self._put(FrozenRequest(signal, body, items, created_ns, weights, synthetic))

    def unfinished(self) -> UnfinishedRequest | None:
        """Return the records that were added since the last request; None if there are none."""
        if not self._weights:
            return None
        items = len(self._weights) - self._synthetic
        weights = self._weights.tobytes() if self._synthetic and items else b""
        return UnfinishedRequest(self._signal, self._message.SerializeToString(), items, weights, self._synthetic)

    def _open(self) -> None:
        self._message = REQUESTS[self._signal]()
        self._of_resource = getattr(self._message, LEVELS[self._signal][0]).add()
        self._of_resource.ParseFromString(self._resource)
        self._records: dict[tuple[str, str, str], Any] = {}
        self._weights = array("I")
        self._synthetic = 0
        self._bytes = 0

    def _open_scope(self, scope: tuple[str, str, str]) -> Any:
        """Return the list of records of a new scope."""
        _, scopes, records = LEVELS[self._signal]
        of_scope = getattr(self._of_resource, scopes).add()
        write_scope(of_scope, scope)
        return getattr(of_scope, records)


class ItemRequests:
    """Encodes items of one kind into requests. Use it from one thread at a time.

    An item that cannot be encoded is lost, and reported to ``lost`` with the reason ``encoding``.

    Args:
        noun: Names an item in log messages, e.g. ``"an event"``.
        signal: ``"logs"`` or ``"traces"``.
        builder: Builds the requests.
        lost: Receives signal, reason and number of items.
    """

    def __init__(self, noun: str, signal: str, builder: RequestBuilder, lost: Callable[[str, str, int], None]) -> None:
        self._noun = noun
        self._signal = signal
        self._builder = builder
        self._lost = lost
        self._failed = False

    def flush(self) -> None:
        """Put the items that were added since the last request."""
        self._builder.flush()

    def settle(self) -> None:
        """Do nothing: each item is encoded when it is added."""

    def unfinished(self) -> UnfinishedRequest | None:
        """Return the request under construction; None if it has no items."""
        return self._builder.unfinished()

    def _add(self, plain: Callable[[], Any], *, synthetic: bool = False) -> None:
        """Encode the plain values that a function returns. Never raises."""
        try:
            self._builder.add(plain(), synthetic=synthetic)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("%s cannot be encoded and is dropped (further ones are only counted)", self._noun)
            if not synthetic:
                self._lost(self._signal, "encoding", 1)
