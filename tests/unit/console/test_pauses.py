"""A few long pauses are not a constant loss, and a constant loss is found in spite of them."""

import pytest
from tests.unit.console.simulated_periods import Delay, Schedule, at_end, looks


def paused(
    pause_s: float, every_s: float, rank: int | None = 1, stage: str = "forward", first_s: float = 12.0
) -> Delay:
    due = {0: first_s, 1: first_s}

    def delay(step: int, at_s: float, of_rank: int, of_stage: str) -> float:
        if of_stage != stage or rank not in {None, of_rank} or at_s < due[of_rank]:
            return 0.0
        due[of_rank] = at_s + every_s
        return pause_s

    return delay


def also(*delays: Delay) -> Delay:
    return lambda *given: sum(delay(*given) for delay in delays)


def every(steps: int, delay_s: float, rank: int = 1, stage: str = "forward") -> Delay:
    return lambda step, _, of_rank, of_stage: delay_s * ((of_rank, of_stage, step % steps) == (rank, stage, 0))


PAUSES = {
    "a second, twice a minute": (1.0, 30.0, 1, "forward"),
    "checkpoints of rank zero": (4.0, 60.0, 0, "other"),
    "ten seconds for data, twice a minute": (10.0, 30.0, None, "data"),
}


@pytest.mark.parametrize("pauses", PAUSES.values(), ids=PAUSES)
def test_pauses_are_no_constant_loss(pauses: tuple[float, float, int | None, str]) -> None:
    """At no look, whenever ``monitel top`` was started, and not in the summary."""
    found = {
        verdict.text
        for _, verdict in looks(Schedule(paused(*pauses)), 130)
        if verdict.kind not in {"healthy", "unknown"}
    }
    assert set() == found
    for seconds in (50.0, 130.0):
        assert "healthy" == at_end(Schedule(paused(*pauses)), seconds).kind


def test_delay_of_every_fifth_step_is_found_within_seconds() -> None:
    """``monitel top`` names it after twelve seconds, and the summary does."""
    steps, delay_s, at_least_s = 5, 0.2, 0.02
    for at_s, verdict in looks(Schedule(every(steps, delay_s)), 100):
        if at_s > 12:
            assert ("late-rank", 1, "forward") == (verdict.kind, verdict.rank, verdict.stage), at_s
            assert verdict.seconds is not None
            assert at_least_s < verdict.seconds < 2 * delay_s / steps
    found = at_end(Schedule(every(steps, delay_s)), 100)
    assert ("late-rank", 1, "forward") == (found.kind, found.rank, found.stage)


def test_delay_is_found_in_spite_of_pauses() -> None:
    """The late rank pauses, or the other one."""
    for rank in (0, 1):
        delay = also(every(1, 0.03), paused(5.0, 60.0, rank))
        kinds = {(v.kind, v.rank) for at_s, v in looks(Schedule(delay), 150) if at_s > 60}
        assert {("late-rank", 1)} == kinds
