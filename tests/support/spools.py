"""Spools on disk: writing and reading them, and the last line of a run, which reports them."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.inbox import points_of, records_of
from tests.support.validity.requests import assert_valid

from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path


def folders(root: Path) -> list[Path]:
    """Return the spools below a folder."""
    return find_spools(root).folders if root.is_dir() else []


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def make_request(number: int, signal: str = "metrics", body: bytes | None = None, items: int = 1) -> FrozenRequest:
    """Return a request that differs from those with other numbers."""
    return FrozenRequest(signal, body if body is not None else b"body %d" % number, items, number)


def write(folder: Path, *requests: FrozenRequest, limit_bytes: int | None = None) -> None:
    """Write requests to a spool, and close it as a process does at its end."""
    with closing(Spool(folder, limit_bytes)) as spool:
        for request in requests:
            spool.append(request)


def load(folder: Path) -> list[FrozenRequest]:
    """Return the requests that the next process loads from a spool."""
    with closing(Spool(folder)) as spool:
        spool.load()
        return list(spool.requests())


def spooled(root: Path, *, distro: bool = True) -> tuple[list[float], list[str]]:
    """Return the values of ``loss.count``, without the zero at its start, and the names of the events in all spools.

    All requests must be valid; with ``distro=False`` their resource may belong to the application.
    """
    counts: list[float] = []
    names: list[str] = []
    requests = [(each.signal, each.message()) for folder in folders(root) for each in Spool(folder).peek()]
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
