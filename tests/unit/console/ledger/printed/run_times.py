"""Ledgers of runs with known times."""

from __future__ import annotations

from monitel_otlp.ledger.run_time import RunTime

SECOND = 10**9
#: 2026-01-02 03:04:05 UTC.
START = 1_767_323_045 * SECOND

#: 2 h 13 min in three attempts.
LONG = {"startup": 200.0, "data": 3032.0, "step": 4600.0, "down": 100.0, "lost": 48.0}


def run_time(
    seconds: dict[str, float], *, run: str = "run-7", attempts: int = 1, start: int = START, ended: bool = True
) -> RunTime:
    """Return the ledger of a run with these seconds in its activities."""
    activities = {name: round(each * SECOND) for name, each in seconds.items()}
    elapsed = sum(activities.values())
    return RunTime(run, activities, elapsed, attempts, start, start + elapsed, ended)
