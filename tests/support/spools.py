"""Spools on disk: writing and reading them, and the last line of a run, which reports them."""

import marshal
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.inbox import DEADLINE, points_of, records_of
from tests.support.validity.requests import assert_valid

from monitel.blackbox.box import Box
from monitel.blackbox.discovery import find_spools
from monitel.blackbox.forms import NUMBER, Definition
from monitel.blackbox.record import EVENT, REJECTED
from monitel_otel.scope import SCOPE
from monitel_otlp.config.resource import describe_process
from monitel_otlp.export.records import oldest_first, peek, peeked
from monitel_otlp.export.sender import Rejected
from monitel_otlp.messages.request import REQUESTS, encode_resource


def folders(root: Path) -> list[Path]:
    return find_spools(root).folders if root.is_dir() else []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave(spool: Path, records: Iterable[tuple[str, int, Any]]) -> Path:
    """Write the record of a process that has ended without delivering anything.

    Args:
        spool: The folder that holds the spools.
        records: For each record the journal, the kind and the value. Numbers refer to the series ``lr``.

    Returns:
        The record.
    """
    identity = {"resource": encode_resource(describe_process()), "scope": tuple(SCOPE)}
    box = Box(spool, None, identity)
    box.names.define([("lr", tuple(Definition(NUMBER, "lr", "lr", "", "", False, {})))])
    for journal, kind, value in records:
        box.journals[journal].append(kind, marshal.dumps(value, 2), len(value) if kind != EVENT else 1)
    assert box.close(DEADLINE)
    return spool / box.name


def requests_in(root: Path) -> list[tuple[str, Any]]:
    found = []
    for path in oldest_first(folders(root)):
        with closing(peek(path)) as dead:
            found += [(signal, REQUESTS[signal].FromString(body)) for signal, body in peeked(dead)]
    return found


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
    counts: list[float] = []
    names: list[str] = []
    requests = requests_in(root)
    for signal, message in requests:
        if signal == "metrics":
            points = (point for point in points_of(message) if point.metric == "loss.count")
            counts += [point.value for point in points if point.value]
        elif signal == "logs":
            names += [record.name for record in records_of(message)]
    assert_valid(requests, distro=distro)
    return counts, names


@dataclass(frozen=True)
class LastLine:
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

    def number(pattern: str) -> int | None:
        found = re.search(pattern, line)
        return int(found[1]) if found else None

    spooled = re.search(r"(\d+) items? in (\S+), replay with: (.*)$", line)
    return LastLine(
        number(r"exported (\d+) windows and numbers"),
        number(r"(\d+) events"),
        number(r"dropped (\d+)"),
        int(spooled[1]) if spooled else None,
        spooled[2] if spooled else None,
        spooled[3] if spooled else None,
    )
