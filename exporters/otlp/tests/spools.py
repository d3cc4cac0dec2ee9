"""What lies in the spools of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel_otlp.spool import Spool

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
