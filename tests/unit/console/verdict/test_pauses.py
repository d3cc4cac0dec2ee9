"""A few long pauses are not a constant loss, and a constant loss is found in spite of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.console.verdict.simulated_periods import Schedule, at_end, looks

if TYPE_CHECKING:
    from tests.unit.console.verdict.simulated_periods import Delay


def paused(
    pause_s: float, every_s: float, rank: int | None = 1, stage: str = "forward", first_s: float = 12.0
) -> Delay:
    """Return pauses of a rank, or of all ranks, in a stage."""
    due = {0: first_s, 1: first_s}

    def delay(step: int, at_s: float, of_rank: int, of_stage: str) -> float:
        if of_stage != stage or rank not in {None, of_rank} or at_s < due[of_rank]:
            return 0.0
        due[of_rank] = at_s + every_s
        return pause_s

    return delay


def also(*delays: Delay) -> Delay:
    """Return the sum of delays."""
    return lambda *given: sum(delay(*given) for delay in delays)


def every(steps: int, delay_s: float, rank: int = 1, stage: str = "forward") -> Delay:
    """Return a delay in each of so many steps."""
    return lambda step, _, of_rank, of_stage: delay_s * ((of_rank, of_stage, step % steps) == (rank, stage, 0))


PAUSES = {
    "a second, twice a minute": (1.0, 30.0, 1, "forward"),
    "ten seconds, once a minute": (10.0, 60.0, 1, "forward"),
    "ten seconds, twice a minute": (10.0, 30.0, 1, "backward"),
    "a minute": (60.0, 400.0, 1, "forward"),
    "checkpoints of rank zero": (4.0, 60.0, 0, "other"),
    "fifteen seconds for data": (15.0, 60.0, None, "data"),
    "ten seconds for data, twice a minute": (10.0, 30.0, None, "data"),
}


@pytest.mark.parametrize("pauses", PAUSES.values(), ids=PAUSES)
@pytest.mark.parametrize("first_s", [1, 100])
def test_pauses_are_no_constant_loss(pauses: tuple[float, float, int | None, str], first_s: int) -> None:
    """At no look, whenever ``monitel top`` was started, and not in the summary."""
    found = {
        verdict.text
        for _, verdict in looks(Schedule(paused(*pauses)), 260, first_s=first_s)
        if verdict.kind not in {"healthy", "unknown"}
    }
    assert set() == found
    for seconds in (50.0, 130.0, 260.0):
        assert "healthy" == at_end(Schedule(paused(*pauses)), seconds).kind


@pytest.mark.parametrize(("steps", "delay_s", "at_least_s"), [(1, 0.03, 0.02), (5, 0.2, 0.02)])
def test_delay_is_found_within_seconds(steps: int, delay_s: float, at_least_s: float) -> None:
    """A delay of each step, or of every fifth."""
    for at_s, verdict in looks(Schedule(every(steps, delay_s)), 100):
        if at_s > 12:
            assert ("late-rank", 1, "forward") == (verdict.kind, verdict.rank, verdict.stage), at_s
            assert verdict.seconds is not None
            assert at_least_s < verdict.seconds < 2 * delay_s / steps
    found = at_end(Schedule(every(steps, delay_s)), 100)
    assert ("late-rank", 1, "forward") == (found.kind, found.rank, found.stage)


def test_delay_that_begins_is_found_within_a_minute() -> None:
    """As soon as it is in most of the period."""
    begun = also(
        every(1, 0.03), lambda _, at_s, rank, stage: -0.03 if at_s < 70 and (rank, stage) == (1, "forward") else 0
    )
    kinds = [(at_s, verdict.kind) for at_s, verdict in looks(Schedule(begun, noise=0.02), 140)]
    assert {"late-rank"} == {kind for at_s, kind in kinds if at_s > 110}
    assert "late-rank" not in {kind for at_s, kind in kinds if 25 < at_s < 70}


def test_delay_is_found_in_spite_of_pauses() -> None:
    """The late rank pauses, or the other one."""
    for rank in (0, 1):
        delay = also(every(1, 0.03), paused(5.0, 60.0, rank))
        kinds = {(v.kind, v.rank) for at_s, v in looks(Schedule(delay), 150) if at_s > 60}
        assert {("late-rank", 1)} == kinds


def test_slow_steps_are_compared_over_minutes() -> None:
    """Twenty steps of 4.5 seconds, of which one has a pause of half a minute, and then a constant delay."""
    kinds = {verdict.kind for _, verdict in looks(Schedule(paused(30.0, 120.0), scale=40.0), 400)}
    assert kinds <= {"healthy", "unknown"}
    late = [v for at_s, v in looks(Schedule(every(1, 2.0), scale=40.0), 200) if at_s > 150]
    assert {("late-rank", 1, "forward")} == {(each.kind, each.rank, each.stage) for each in late}
