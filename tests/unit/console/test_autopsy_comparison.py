"""The comparison of ranks: the wait that the others are in, and the rank that is not in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.console.known_processes import SECOND, dead_process, rank_of

from monitel.blackbox.activity import Stage
from monitel.console.autopsy.comparison import compare
from monitel.console.autopsy.findings import Findings, State
from monitel.console.autopsy.sentences import compared
from monitel.console.text import Screen


def sentences(*processes: Findings) -> list[str]:
    """Return the sentences about the only job."""
    (comparison,) = compare(processes)
    return [*compared(comparison, Screen(width=1000))]


def test_rank_that_is_not_in_the_wait_is_late() -> None:
    """Name it, with its activity."""
    ranks = [rank_of(rank, waits={"all_reduce": 41 - rank}) for rank in (0, 1, 3)]
    late = rank_of(2, activity="data", activity_age_ns=42 * SECOND, step=1199)
    assert [
        "ranks 0, 1 and 3 wait in all_reduce, the first one for 41 s",
        "late: rank 2 is not in all_reduce: its activity is data for 42 s",
        "last steps differ: 1,200 (ranks 0, 1 and 3), 1,199 (rank 2)",
    ] == sentences(*ranks, late)


@pytest.mark.parametrize(
    ("changes", "doing"),
    [
        ({"waits": {"barrier": 40}}, "it waits in barrier for 40 s"),
        ({"state": State.SILENT}, "it is silent; it is in no wait"),
        ({"state": State.DEAD, "death": "killed by SIGSEGV"}, "it has died (killed by SIGSEGV); it was in no wait"),
        ({"stage": Stage("forward", False, 9 * SECOND)}, "it is in stage forward for 9 s"),
    ],
)
def test_state_of_the_late_rank_is_in_words(changes: dict[str, Any], doing: str) -> None:
    """Another wait, silence or death."""
    shown = sentences(rank_of(0, waits={"all_reduce": 41}), rank_of(1, **changes))
    assert "rank 0 waits in all_reduce for 41 s" == shown[0]
    assert f"late: rank 1 is not in all_reduce: {doing}" == shown[1]


def test_short_waits_accuse_nobody() -> None:
    """Ranks of a job that makes progress are in waits for milliseconds."""
    shown = sentences(rank_of(0, waits={"all_reduce": 0.004}), rank_of(1))
    assert ["rank 0 waits in all_reduce for 4 ms"] == shown


def test_wait_of_all_ranks_points_to_other_machines() -> None:
    """Without a late rank here, the ranks without a box are named."""
    here = [rank_of(rank, waits={"all_reduce": 41}) for rank in (0, 1)]
    assert [
        "all 2 ranks found here wait in all_reduce, the first one for 41 s",
        "ranks 2 and 3 have no box here: on another machine, or ended",
    ] == sentences(*here)
    everybody = [rank_of(rank, waits={"all_reduce": 41}) for rank in range(4)]
    assert ["all 4 ranks wait in all_reduce, the first one for 41 s"] == sentences(*everybody)


def test_wait_that_a_rank_is_not_in_comes_first() -> None:
    """A wait of all ranks, for instance of a background thread, does not hide the late rank."""
    ranks = [rank_of(rank, waits={"queue": 900, "all_reduce": 5}) for rank in (0, 1, 3)]
    shown = sentences(*ranks, rank_of(2, waits={"queue": 900}))
    assert "late: rank 2 is not in all_reduce: it waits in queue for 15 min" == shown[1]
    assert shown[2].startswith("all 4 ranks wait in queue")


def test_jobs_and_attempts_are_compared_separately() -> None:
    """A rank of another run, or a process without a rank, is not part of the job."""
    other = rank_of(1)
    other = replace(other, identity=other.identity._replace(run="run-8"))
    alone = replace(dead_process(), identity=dead_process().identity._replace(rank=None))
    assert [] == compare([rank_of(0), other, alone])
    assert [[0, 1], [0, 1]] == [
        [*each.ranks]
        for each in compare(
            [
                replace(rank_of(rank), identity=rank_of(rank).identity._replace(attempt=attempt))
                for attempt in (0, 1)
                for rank in (0, 1)
            ]
        )
    ]


def test_ranks_of_an_earlier_start_are_left_out() -> None:
    """A box that nobody has collected yet may be of an earlier job with the same names."""
    later = rank_of(0).started_ns + 3600 * SECOND
    earlier = rank_of(3, state=State.DEAD, seen_ns=later - 120 * SECOND)
    (comparison,) = compare([rank_of(0, started_ns=later), rank_of(1, started_ns=later), earlier])
    assert [0, 1] == [*comparison.ranks]
    just_before = rank_of(3, state=State.DEAD, seen_ns=later - SECOND)
    (comparison,) = compare([rank_of(0, started_ns=later), rank_of(1, started_ns=later), just_before])
    assert [0, 1, 3] == [*comparison.ranks]


def test_rank_with_several_processes_counts_once() -> None:
    """The one that makes steps, and lives."""
    helper = rank_of(1, step=None, waits={"queue": 99})
    died = rank_of(1, state=State.DEAD, step=7)
    (comparison,) = compare([rank_of(0), helper, rank_of(1), died])
    assert 1200 == comparison.ranks[1].step
    assert () == comparison.dead
