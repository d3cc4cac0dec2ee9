"""Requests of the log records and spans that the SDK's providers hand over."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from monitel_otlp.messages.request import LEVELS, REQUESTS, FrozenRequest, UnfinishedRequest, complete_schema
from monitel_otlp.messages.request_builder import BYTES_PER_REQUEST, RECORDS_PER_REQUEST
from monitel_otlp.sdk.official_encoders import ENCODERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord

_log = logging.getLogger("monitel.otlp")

RECORDS_PER_STEP = 8


class RecordRequests:
    """Encodes log records or spans of the SDK's providers into requests. Use it from one thread at a time.

    A request has at most 500 records or about 1 MiB, and one entry for each resource and scope. A record that cannot be
    encoded is lost, and reported to ``lost`` with the reason ``encoding``.

    Args:
        signal: ``"logs"`` or ``"traces"``.
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        created_ns: Creation time of the requests, Unix ns; None: the time at which each request is finished.
    """

    def __init__(
        self,
        signal: str,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        created_ns: int | None = None,
    ) -> None:
        self._signal = signal
        self._put = put
        self._lost = lost
        self._created_ns = created_ns
        self._encode = ENCODERS[signal]
        self._failed = False
        self._batch: list[Any] = []
        self._open()

    def add(self, record: ReadableLogRecord | ReadableSpan) -> None:
        """Add one record. A few records are encoded together, which is faster. Never raises."""
        self._batch.append(record)
        if len(self._batch) >= RECORDS_PER_STEP:
            self._encode_batch()

    def export(self, batch: Sequence[ReadableLogRecord] | Sequence[ReadableSpan]) -> None:
        """Encode a batch of any size, and put the requests."""
        for record in batch:
            self.add(record)
        self.flush()

    def flush(self) -> None:
        """Put the records that are not in a request yet."""
        self.settle()
        if self._items:
            self._put_open()

    def settle(self) -> None:
        """Encode the records that wait to be encoded together."""
        if self._batch:
            self._encode_batch()

    def unfinished(self) -> UnfinishedRequest | None:
        """Return the request under construction; None if it has no items."""
        if not self._items:
            return None
        return UnfinishedRequest(self._signal, self._message.SerializeToString(), self._items, b"", 0)

    def _put_open(self) -> None:
        body, items = self._message.SerializeToString(), self._items
        self._open()
        self._put(
            FrozenRequest(self._signal, body, items, time.time_ns() if self._created_ns is None else self._created_ns)
        )

    def _open(self) -> None:
        self._message = REQUESTS[self._signal]()
        self._resources: dict[tuple[bytes, str], Any] = {}
        self._scopes: dict[tuple[bytes, str, bytes, str], Any] = {}
        self._items = 0
        self._bytes = 0

    def _encode_batch(self) -> None:
        batch, self._batch = self._batch, []
        try:
            self._append(self._encode(batch))
        except Exception:
            batch = [record for record in batch if self._encode_alone(record)]
        self._items += len(batch)
        if self._items >= RECORDS_PER_REQUEST or self._bytes >= BYTES_PER_REQUEST:
            self._put_open()

    def _encode_alone(self, record: Any) -> bool:
        try:
            self._append(self._encode([record]))
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception(
                    "a record of %s cannot be encoded and is dropped (further ones are only counted)", self._signal
                )
            self._lost(self._signal, "encoding", 1)
            return False
        return True

    def _append(self, encoded: Any) -> None:
        """Append the records of a request to those of the same resource and scope."""
        resources, scopes, records = LEVELS[self._signal]
        for of_resource in getattr(encoded, resources):
            complete_schema(of_resource)
            outer = of_resource.resource.SerializeToString(), of_resource.schema_url
            for of_scope in getattr(of_resource, scopes):
                key = *outer, of_scope.scope.SerializeToString(), of_scope.schema_url
                found = self._scopes.get(key)
                if found is None:
                    resource = self._resources.get(outer)
                    if resource is None:
                        resource = self._resources[outer] = getattr(self._message, resources).add()
                        resource.resource.CopyFrom(of_resource.resource)
                        resource.schema_url = of_resource.schema_url
                    scope = getattr(resource, scopes).add()
                    scope.scope.CopyFrom(of_scope.scope)
                    scope.schema_url = of_scope.schema_url
                    found = self._scopes[key] = getattr(scope, records)
                found.extend(getattr(of_scope, records))
        self._bytes += encoded.ByteSize()
