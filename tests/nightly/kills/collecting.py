"""Collectors of the boxes of dead processes: the command ``replay``, and the next pipeline of the same user."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import monitel
import monitel_otlp
from monitel_otlp.__main__ import main as command

_DEADLINE = 10.0  # seconds


def collect(by: dict[str, Any]) -> None:
    """Collect all boxes, and deliver what was in them.

    Args:
        by: ``way`` (``replay`` or ``pipeline``), ``endpoint``, ``spool``, ``boxes`` and ``environment``.
    """
    os.environ.update(by["environment"])
    if by["way"] == "replay":
        sys.exit(command(["replay", by["spool"], "--endpoint", by["endpoint"]]))
    with monitel_otlp.configure(endpoint=by["endpoint"], spool_dir=by["spool"], export_interval=0.1):
        monitel.emit("collector")
        deadline, pause = time.monotonic() + _DEADLINE, Event()
        while _left(Path(by["boxes"]), Path(by["spool"])) and time.monotonic() < deadline:
            pause.wait(0.02)


def _left(boxes: Path, spool: Path) -> bool:
    """Return True if there is a box, except that of this process, or a request on disk."""
    own = f"{os.getpid()}-"
    others = [each for each in boxes.iterdir() if not each.name.startswith((own, "."))]
    return bool(others) or any(name.endswith(".spool") for _, _, names in os.walk(spool) for name in names)


if __name__ == "__main__":
    collect(json.loads(sys.argv[1]))
