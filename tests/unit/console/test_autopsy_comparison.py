"""The lines of an autopsy about a job: its verdict, the waits that its ranks share, and different last steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.unit.console.known_processes import SECOND, dead_process, rank_of

from monitel.console.autopsy import job_lines
from monitel.console.job import jobs_of
from monitel.console.text import Screen

if TYPE_CHECKING:
    from monitel.console.process import Process


def sentences(*processes: Process) -> list[str]:
    """Return the lines about the only job."""
    (job,) = jobs_of(processes)
    return [*job_lines(job, Screen(width=1000))]


def still(rank: int, **changes: object) -> Process:
    """Return a rank that has stood still for 41 seconds; a usual step takes 0.1 s."""
    fields = {"waits": {"all_reduce": 40.0 - rank}, "made": 100, "step_p50": 0.1, "step_age_ns": 41 * SECOND}
    return rank_of(rank, **{**fields, **changes})  # type: ignore[arg-type]


def test_rank_that_the_others_wait_for_is_in_the_verdict() -> None:
    """With its activity; the waits and the steps are facts beside it."""
    late = still(2, waits={}, activity="data", activity_age_ns=40 * SECOND, step=1199)
    assert [
        "stuck: rank 2 has been in data for 40 s; ranks 0, 1 and 3 wait for it in all_reduce",
        "ranks 0, 1 and 3 wait in all_reduce, the first one for 40 s; rank 2 is not",
        "last steps differ: 1,200 (ranks 0, 1 and 3), 1,199 (rank 2)",
    ] == sentences(still(0), still(1), still(3), late)


def test_short_waits_accuse_nobody() -> None:
    """Ranks of a job that makes progress are in waits for milliseconds."""
    shown = sentences(rank_of(0, waits={"all_reduce": 0.004}), rank_of(1))
    assert "rank 0 waits in all_reduce for 4 ms" == shown[1]


def test_wait_of_all_ranks_points_to_other_machines() -> None:
    """Without a late rank here, the verdict says how many ranks are here."""
    shown = sentences(still(0), still(1))
    assert shown[0].startswith("stuck: ranks 0 and 1 have waited in all_reduce for 40 s (2 of 4 ranks found here, ")
    assert "ranks 0 and 1 wait in all_reduce, the first one for 40 s" == shown[1]


def test_wait_that_a_rank_is_not_in_comes_first() -> None:
    """A wait of all ranks, for instance of a background thread, does not hide the late rank."""
    ranks = [rank_of(rank, waits={"queue": 900, "all_reduce": 5}) for rank in (0, 1, 3)]
    shown = sentences(*ranks, rank_of(2, waits={"queue": 900}))
    assert shown[1].endswith("; rank 2 is not")
    assert shown[2].startswith("ranks 0-3 wait in queue")


def test_dead_processes_have_the_cause_and_the_exception_of_the_first() -> None:
    """A rank with several processes counts once: the one that makes steps."""
    helper = rank_of(1, step=None, stepped=False, pid=7)
    died = dead_process(rank=1, world_size=2, attempt=None, exception=("OSError", "no space", "train.py:9"))
    shown = sentences(replace(rank_of(0), world_size=2), helper, died)
    assert "dead: rank 1 killed by SIGSEGV at step 1,199" == shown[0]
