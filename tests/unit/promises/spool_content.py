"""The content of a spool, as a user sees it: by ``monitel cat``, and by ``monitel replay`` to a backend."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from tests.support.inbox import Point, Record, Span, points_of, records_of, spans_of
from tests.support.receiver import MESSAGES
from tqdm import tqdm

_SIGNALS = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}


@dataclass(frozen=True)
class Printed:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


def monitel(capsys: pytest.CaptureFixture[str], *arguments: object) -> Printed:
    """Run the installed program ``monitel`` in this process."""
    (program,) = entry_points(group="console_scripts", name="monitel")
    tqdm.monitor_interval = 0  # else the first bar of progress starts a thread that stays
    capsys.readouterr()
    try:
        status = program.load()([str(each) for each in arguments])
    except SystemExit as ended:  # wrong arguments
        status = ended.code
    printed = capsys.readouterr()
    return Printed(status, printed.out, printed.err)


@dataclass(frozen=True)
class Content:
    """Requests in the order of ``cat``."""

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
    """Return the requests that ``cat`` has printed, one per line."""
    found = []
    for line in printed.splitlines():
        document = json.loads(line)
        (field,) = document
        signal = _SIGNALS[field]
        found.append((signal, Parse(json.dumps(_with_base64_ids(document)), MESSAGES[signal][0]())))
    return Content(found)


def cat(capsys: pytest.CaptureFixture[str], folder: str | PathLike[str]) -> Content:
    """Return the requests in the spools below a folder; ``cat`` must read everything."""
    printed = monitel(capsys, "cat", folder)
    assert (0, "") == (printed.status, printed.err)
    return parse(printed.out)


def files(folder: str | PathLike[str]) -> list[Path]:
    """Return the files of the spools below a folder that hold telemetry: journals, and rejected requests."""
    found = [each for each in sorted(Path(folder).rglob("*")) if each.is_file() and "ledgers" not in each.parts]
    return [each for each in found if each.suffix == ".log"]


def _with_base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode()
        if key in {"traceId", "spanId", "parentSpanId"}
        else _with_base64_ids(each)
        for key, each in value.items()
    }
