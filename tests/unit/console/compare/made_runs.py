"""Runs that never ran, with known numbers."""

from __future__ import annotations

from typing import Any

from monitel.console.compare.run import Number, Run

SECOND = 10**9
START = 1_767_323_045 * SECOND  # 2026-01-02 03:04:05 UTC


def made_run(label: str = "run-7", **changes: Any) -> Run:
    """Return a run of 200 s, which has completed 1,000 steps."""
    numbers: dict[str, Any] = {
        "label": label,
        "source": "the ledger",
        "outcome": "completed",
        "started_ns": START,
        "last_ns": START + 200 * SECOND,
        "attempts": 1,
        "activities": {"startup": 20 * SECOND, "step": 150 * SECOND, "data": 30 * SECOND},
        "goodput": 0.75,
        "steps": 1000,
        "last_step": 999,
        "numbers": {("loss.mean", ()): Number(0.5), ("eval.loss", (("split", "val"),)): Number(0.25, "s")},
        "config": {"rate": 0.1, "layers": 4},
        "attributes": {"training.world_size": 2, "service.name": "train", "process.pid": 1},
    }
    return Run(**{**numbers, **changes})
