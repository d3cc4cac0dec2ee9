"""Spools on disk, as a user sees them: by ``monitel cat``, and by the last line of a run, which reports them."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import Parse
from tests.support.commands import command
from tests.support.inbox import Inbox, Point, Record, Span, points_of, records_of, spans_of
from tests.support.receiver import MESSAGES
from tests.support.validity.requests import assert_valid

from monitel.blackbox.discovery import find_spools
from monitel.blackbox.record import REJECTED
from monitel_otlp.export.records import peek
from monitel_otlp.export.sender import Rejected
from monitel_otlp.messages.request import REQUESTS

_SIGNALS = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}


def folders(root: Path) -> list[Path]:
    return find_spools(root).folders if root.is_dir() else []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    assert (0, "") == (printed.status, printed.stderr)
    return parse(printed.stdout)


def files(folder: str | PathLike[str]) -> list[Path]:
    """Return the files of the spools below a folder that hold telemetry: journals, and rejected requests."""
    found = [each for each in sorted(Path(folder).rglob("*")) if each.is_file() and "ledgers" not in each.parts]
    return [each for each in found if each.suffix == ".log"]


def _with_base64_ids(value: dict[str, Any]) -> dict[str, Any]:
    ids = {"traceId", "spanId", "parentSpanId"} & value.keys()
    return {**value, **{name: base64.b64encode(bytes.fromhex(value[name])).decode() for name in ids}}


def rejected_requests(root: Path) -> list[Rejected]:
    """Return the requests that a backend has rejected, in all records below a folder."""
    found = []
    for path in find_spools(root).refused:
        with closing(peek(path)) as dead:
            found += [Rejected(*each.value) for each in dead.items(REJECTED, dead.journals[REJECTED].settled + 1)]
    return found


def rejected_in(root: Path) -> list[Any]:
    return [REQUESTS[each.signal].FromString(each.body) for each in rejected_requests(root)]


def spooled(root: Path, *, distro: bool = True) -> tuple[list[float], list[str]]:
    """Return the values of ``loss.count``, without the zero at its start, and the names of the events in all spools.

    All requests must be valid; with ``distro=False`` their resource may belong to the application.
    """
    found = cat(root) if folders(root) else Content([])
    assert_valid(found.requests, distro=distro)
    return found.values("loss.count"), found.names


def arrived(receiver: Inbox) -> tuple[list[float], list[str]]:
    return receiver.values("loss.count"), receiver.record_names()


class LastLine(NamedTuple):
    """Numbers of the line that a run prints at its end; None for a number that is not in the line."""

    windows: int | None
    events: int | None
    dropped: int | None
    spooled: int | None
    folder: str | None
    command: str | None


def last_line(stderr: str) -> LastLine:
    """Parse the last line of a run; there must be exactly one."""
    (line,) = (line for line in stderr.splitlines() if line.startswith("monitel: "))
    patterns = (r"exported (\d+) windows and numbers", r"(\d+) events", r"dropped (\d+)", r"(\d+) items? in ")
    numbers = [int(found[1]) if (found := re.search(each, line)) else None for each in patterns]
    replay = re.search(r" items? in (\S+), replay with: (.*)$", line) or ("", None, None)
    return LastLine._make([*numbers, replay[1], replay[2]])
