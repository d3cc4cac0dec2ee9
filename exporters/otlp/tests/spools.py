"""What lies in the spools of a run, and what its last line says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel_otlp.spool.spool import Spool

from .inbox import points_of, records_of

if TYPE_CHECKING:
    from pathlib import Path


def folders(root: Path) -> list[Path]:
    """The spools below a folder."""
    return sorted({path.parent for path in root.rglob("*.spool")})


def spooled(root: Path) -> tuple[list[float], list[str]]:
    """The values of ``loss.count`` and the names of the events in all spools below a folder."""
    counts: list[float] = []
    names: list[str] = []
    for folder in folders(root):
        for request in Spool(folder).peek():
            if request.signal == "metrics":
                counts += [point.value for point in points_of(request.message()) if point.metric == "loss.count"]
            elif request.signal == "logs":
                names += [record.name for record in records_of(request.message())]
    return counts, names


@dataclass(frozen=True)
class LastLine:
    """The one line that a run says at its end, in numbers; None where it does not speak of something."""

    windows: int | None
    events: int | None
    dropped: int | None
    spooled: int | None
    folder: str | None
    command: str | None


def last_line(stderr: str) -> LastLine:
    """Read it; there must be exactly one."""
    (line,) = (line for line in stderr.splitlines() if line.startswith("monitel: "))

    def number(pattern: str) -> int | None:
        found = re.search(pattern, line)
        return int(found[1]) if found else None

    place = re.search(r"(\d+) in (\S+), replay with: (.*)$", line)
    return LastLine(
        number(r"exported (\d+) windows"),
        number(r"(\d+) events"),
        number(r"dropped (\d+)"),
        int(place[1]) if place else None,
        place[2] if place else None,
        place[3] if place else None,
    )
