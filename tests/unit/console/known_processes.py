"""Findings about jobs that never ran, with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monitel.blackbox.activity import Stage
from monitel.console.autopsy.findings import (
    CounterValue,
    Findings,
    Identity,
    Numbers,
    OpenRange,
    PastEvent,
    State,
    Undelivered,
    Wait,
)

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


def rank_of(rank: int, *, waits: dict[str, float] | None = None, **changes: Any) -> Findings:
    """Return the findings about a live rank of four, which is in these waits for these seconds."""
    findings: dict[str, Any] = {
        "source": Path(f"/boxes/{rank}"),
        "state": State.ALIVE,
        "identity": Identity(4000 + rank, "n04", "llm", "run-7", rank, rank, 4),
        "started_ns": START,
        "seen_ns": NOW,
        "step": 1200,
        "waits": [Wait(key, round(seconds * SECOND)) for key, seconds in (waits or {}).items()],
    }
    return Findings(**{**findings, **changes})


def window_of(name: str, *, attributes: dict[str, Any] | None = None, count: int = 4) -> Numbers:
    """Return a window with the samples 1, 2, ..., of which 2 is the last one."""
    return Numbers(name, attributes or {}, "", count, count * (count + 1) / 2, 2.0, 1.0, float(count), NOW, 1100, 1200)


def dead_process() -> Findings:
    """Return the findings about a process that SIGSEGV has ended, 4 seconds after its last step."""
    return Findings(
        source=Path("/boxes/31337"),
        state=State.DEAD,
        identity=Identity(31337, "n04", "llm", "run-7", 2, 2, 4, 1),
        started_ns=START,
        seen_ns=START + 3_600 * SECOND,
        death="killed by SIGSEGV",
        step=1199,
        step_age_ns=4 * SECOND,
        steps_per_second=8.25,
        activity="data",
        activity_age_ns=3 * SECOND,
        stage=Stage("forward", True, 2 * SECOND, 7),
        waits=[Wait("all_reduce", 41 * SECOND, 7)],
        waits_left_out=2,
        ranges=[OpenRange("forward", 5 * SECOND), OpenRange("attention", SECOND)],
        windows=[window_of("gradient.norm"), window_of("train.loss", attributes={"split": "train"})],
        counters=[CounterValue("training.samples", {}, 9592)],
        events=[PastEvent(START + SECOND, 9, "epoch.start", {"epoch": 1, "rate": 0.5})],
        undelivered=Undelivered(items=120, events=14, windows=2, samples=8),
        stacks='Fatal\nThread 0x01 (most recent call first):\n  File "train.py", line 12 in <module>\n',
    )
