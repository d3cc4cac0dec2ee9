"""Processes that never ran, with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.console.recorded import definition

from monitel.blackbox.activity import Stage, Wait
from monitel.blackbox.reading import Record
from monitel.blackbox.record import EVENT, NUMBERS, Item
from monitel.blackbox.recovery import Snapshot
from monitel.console.process import JobName, PastEvent, Process, State
from monitel.window_bytes import OpenWindow, encode
from monitel.window_bytes import Snapshot as Numbers

SECOND = 10**9
#: 2026-01-02 03:04:05 UTC.
START = 1_767_323_045 * SECOND
NOW = START + 7_000 * SECOND

STACKS = """\
Thread 0x00007f0000000001 [MainThread] (most recent call first):
  File "train.py", line 12 in <module>

Current thread 0x00007f0000000002 [monitel-otlp] (most recent call first):
  File "box.py", line 3 in answer

Thread 0x00007f0000000003 [loader] (most recent call first):
  File "loader.py", line 7 in read
"""


def rank_of(rank: int | None, *, waits: dict[str, float] | None = None, **changes: Any) -> Process:
    """Return a live rank of four, which is in these waits for these seconds."""
    fields: dict[str, Any] = {
        "box": Path(f"/boxes/{rank}"),
        "pid": 4000 + (rank or 0),
        "host": "n04",
        "job": JobName("", "llm", "run-7"),
        "rank": rank,
        "local_rank": rank,
        "world_size": 4,
        "started_ns": START,
        "time_ns": NOW,
        "seen_ns": NOW,
        "step": 1200,
        "waits": tuple(Wait(key, round(seconds * SECOND)) for key, seconds in (waits or {}).items()),
    }
    return Process(**{**fields, **changes})


def record_of(
    *names: str, counters: dict[str, float] | None = None, items: int = 0, events: int = 0, **attributes: Any
) -> Record:
    """Return a record with open windows of the samples 1, 2, 3, 4, of which 2 is the last one, counters and items."""
    series = [definition(name, **attributes) for name in names]
    numbers = Numbers(NOW, NOW + 60 * SECOND, 4, 10.0, 1.0, 4.0, 2.0, 0, 1100, 1200, None, None)
    windows = b"".join(encode(OpenWindow(each, 0, False, NOW, numbers)) for each in range(len(series)))
    values: dict[str, Any] = {
        "counters": [(name, "", "", {}, total, START, None) for name, total in (counters or {}).items()]
    }
    snapshot = Snapshot(NOW, NOW, 1, windows, tuple(range(1, len(series) + 1)), values)
    waiting = {"metrics": [Item(1, items, NUMBERS, None)], "logs": [Item(1, events, EVENT, None)]}
    return Record(Path("/boxes/1"), [{"attributes": {}}, *map(tuple, series)], snapshot, items=waiting)


def dead_process(**changes: Any) -> Process:
    """Return a process that SIGSEGV has ended, 4 seconds after its last step."""
    fields: dict[str, Any] = {
        "box": Path("/boxes/31337"),
        "pid": 31337,
        "host": "n04",
        "job": JobName("", "llm", "run-7"),
        "rank": 2,
        "local_rank": 2,
        "world_size": 4,
        "attempt": 1,
        "state": State.DEAD,
        "started_ns": START,
        "time_ns": NOW,
        "seen_ns": START + 3_600 * SECOND,
        "death": "killed by SIGSEGV",
        "step": 1199,
        "step_age_ns": 4 * SECOND,
        "rate": 8.25,
        "activity": "data",
        "activity_age_ns": 3 * SECOND,
        "stage": Stage("forward", True, 2 * SECOND, 7),
        "waits": (Wait("all_reduce", 41 * SECOND, 7),),
        "waits_left_out": 2,
        "ranges": (Wait("forward", 5 * SECOND), Wait("attention", SECOND)),
        "events": [PastEvent(START + SECOND, 9, "epoch.start", {"epoch": 1, "rate": 0.5})],
        "stacks": 'Fatal\nThread 0x01 (most recent call first):\n  File "train.py", line 12 in <module>\n',
        "record": record_of(
            *("train.loss", "gradient.norm"),
            counters={"training.samples": 9592},
            items=120,
            events=14,
            split="train",
        ),
    }
    return Process(**{**fields, **changes})
