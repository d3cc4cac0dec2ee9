"""Numbers, configuration and progress that a job notes itself, apart from monitel."""

from __future__ import annotations

import json
import sys
import time
from threading import Event
from typing import Any

import torch

import monitel_otlp

PACE = 0.02  # seconds of a batch
WIDTH = 8  # of a sample
NUMBERS: list[tuple[int, dict[str, float]]] = []  # the step and the numbers of each call
CONFIG: dict[str, Any] = {}
_timeline: list[tuple[float, int]] = []  # Unix seconds, and samples so far
_never = Event()


def start() -> None:
    """Export every half second, and start without warm-up."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    monitel_otlp.configure(export_interval=0.5)


def batch_done(samples: int) -> None:
    """Note a batch whose step has ended, after a pause that makes the pace of the job."""
    _never.wait(PACE)
    before = _timeline[-1][1] if _timeline else 0
    _timeline.append((time.time(), before + samples))


def report(**more: Any) -> None:
    """Print the notes as one line of JSON."""
    noted = {"numbers": NUMBERS, "config": CONFIG, "timeline": _timeline, **more}
    sys.stdout.write(json.dumps(noted) + "\n")
