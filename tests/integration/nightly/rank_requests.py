"""Requests of the ranks of a job, made by the encoders of the pipeline in one process, and sent in any order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from http.client import HTTPConnection
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource

import monitel
from monitel.blackbox.forms import STAT, Definition
from monitel.blackbox.record import WINDOW, Item
from monitel.stats.window import OpenWindow, encode
from monitel_otlp.messages.request import encode_resource
from monitel_otlp.metrics.windows import Mapping, Totals, WindowsEncoder

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
        self._stats: list[monitel.StatDefinition] = []
        mapping = Mapping("cumulative", start_ns, "percentiles")
        self._totals = Totals(self._definition, mapping)
        self._encoder = WindowsEncoder(encode_resource(Resource(resource)), mapping, self._totals)

    def _definition(self, number: int) -> Definition:
        stat = self._stats[number]
        suffixes = tuple(each.suffix for each in stat.aggregations)
        return Definition(
            STAT, stat.name, stat.name, stat.unit, stat.description, stat.monotonic, dict(stat.attributes), suffixes
        )

    def encode(self, windows: Iterable[monitel.Window]) -> list[bytes]:
        items = []
        for number, window in enumerate(windows, self._totals.number + 1):
            if window.definition not in self._stats:
                self._stats.append(window.definition)
            content = encode(OpenWindow(1, number, True, 0, *window[1:]))
            items.append(Item(number, 1, WINDOW, (self._stats.index(window.definition), content)))
        encoded = self._encoder.encode(items)
        assert 0 == encoded.lost
        self._totals.commit(items[-1].number, encoded.draft)
        return [encoded.body]


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
