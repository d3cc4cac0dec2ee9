"""The content of a spool, as a user sees it: by ``monitel cat``, and by ``monitel replay`` to a backend."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from google.protobuf.json_format import Parse
from tests.support.commands import command
from tests.support.inbox import Point, Record, Span, points_of, records_of, spans_of
from tests.support.receiver import MESSAGES

_SIGNALS = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}


@dataclass(frozen=True)
class Content:
    requests: list[tuple[str, Any]]

    @property
    def records(self) -> list[Record]:
        return [each for message in self._of("logs") for each in records_of(message)]

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.records]

    @property
    def spans(self) -> list[Span]:
        return [each for message in self._of("traces") for each in spans_of(message)]

    def points(self, metric: str) -> list[Point]:
        """Return the points of a metric, without the zeros at the start of a running total."""
        found = [each for message in self._of("metrics") for each in points_of(message)]
        return [each for each in found if each.metric == metric and (each.value or each.kind == "gauge")]

    def values(self, metric: str) -> list[float]:
        return [each.value for each in self.points(metric)]

    def _of(self, signal: str) -> Iterator[Any]:
        return (message for kind, message in self.requests if kind == signal)


def parse(printed: str) -> Content:
    found = []
    for line in printed.splitlines():
        document = json.loads(line, object_hook=_with_base64_ids)
        (field,) = document
        found.append((_SIGNALS[field], Parse(json.dumps(document), MESSAGES[_SIGNALS[field]][0]())))
    return Content(found)


def cat(folder: str | PathLike[str]) -> Content:
    """Return the requests in the spools below a folder; ``cat`` must read everything."""
    printed = command("cat", folder)
    assert (0, "") == (printed.status, printed.errors)
    return parse(printed.output)


def files(folder: str | PathLike[str]) -> list[Path]:
    """Return the files of the spools below a folder that hold telemetry: journals, and rejected requests."""
    found = [each for each in sorted(Path(folder).rglob("*")) if each.is_file() and "ledgers" not in each.parts]
    return [each for each in found if each.suffix == ".log"]


def _with_base64_ids(value: dict[str, Any]) -> dict[str, Any]:
    ids = {"traceId", "spanId", "parentSpanId"} & value.keys()
    return {**value, **{name: base64.b64encode(bytes.fromhex(value[name])).decode() for name in ids}}
