"""Requests of the ranks of a job, made by the encoders of the pipeline in one process, and sent in any order."""

from __future__ import annotations

import uuid
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource

from monitel_otlp.messages.resource import encode_resource
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.requests import MetricRequests
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    import monitel
    from monitel_otlp.messages.request import FrozenRequest

RANKS_PER_NODE = 8


class RankRequests:
    """Encodes the windows of one rank, with the resource that the launcher and the host give it.

    Args:
        rank: The rank.
        ranks: Number of ranks of the job.
        run: The id of the run.
        start_ns: Start of the process, Unix ns.
    """

    def __init__(self, rank: int, ranks: int, run: str, start_ns: int) -> None:
        node, local_rank = divmod(rank, RANKS_PER_NODE)
        resource: dict[str, str | int] = {
            "service.name": "train",
            "service.instance.id": str(uuid.uuid4()),
            "host.name": f"n{node:04}",
            "training.run.id": run,
            "training.attempt": 0,
            "training.rank": rank,
            "training.local_rank": local_rank,
            "training.node_rank": node,
            "training.world_size": ranks,
        }
        self._found: list[FrozenRequest] = []
        self._queue = WindowQueue(1 << 20, 1 << 30)
        mapping = WindowMapping("cumulative", start_ns)
        encoded = encode_resource(Resource(resource))
        self._requests = MetricRequests(mapping, lambda: 0, encoded, self._found.append, _fail)

    def encode(self, windows: Iterable[monitel.Window]) -> list[bytes]:
        """Return the requests with these windows, which continue the totals of the windows before."""
        for window in windows:
            self._queue.put(window)
        self._requests.add(self._queue.queue.take(1 << 20))
        self._requests.flush()
        bodies = [each.body for each in self._found]
        self._found.clear()
        return bodies


def _fail(signal: str, reason: str, items: int) -> None:
    raise AssertionError(f"{items} {signal} are lost: {reason}")


def send(url: str, bodies: Iterable[bytes]) -> None:
    """Send requests to a Prometheus in this order, each of which it must accept."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Content-Type": "application/x-protobuf"}
    try:
        for body in bodies:
            connection.request("POST", "/api/v1/otlp/v1/metrics", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            assert 200 == answer.status, content
    finally:
        connection.close()
