"""Starts of processes that ended before their first step: which count, and how many are kept."""

from __future__ import annotations

from monitel_otlp.ledger import starts
from monitel_otlp.ledger.history import Attempt
from monitel_otlp.ledger.run_identity import identify

IDENTITY = identify({"training.run.id": "run-7"})


def start(begin: int, end: int, name: str = "other") -> Attempt:
    """Return a start from one second to another one."""
    return Attempt(name, {"startup": (end - begin) * 10**9}, end * 10**9)


def test_starts_that_overlap_do_not_count() -> None:
    """Simultaneous starts of ranks count once. A start that overlaps another attempt does not count."""
    own = start(40, 50, "own")
    earlier, last, down_ns, unseen_ns = starts.fold_starts(
        None, [start(1, 10), start(2, 11), start(15, 20), start(30, 45), own], own
    )
    assert (2, {"startup": 14 * 10**9, "down": 5 * 10**9}) == (earlier.attempts, dict(earlier.activities))
    assert (5 * 10**9, 14 * 10**9) == (down_ns, unseen_ns)
    assert last is not None
    assert (20 * 10**9, (20 * 10**9, 0)) == (last.last_ns, starts.gap_after(last, own))
