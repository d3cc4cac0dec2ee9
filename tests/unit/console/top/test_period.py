"""The part of totals that belongs to a period: its begin, and totals that have begun again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.console.top.made_rows import SECOND, history_of, report_of

from monitel_otlp.summary.report import StageTotal, Total
from monitel_otlp.top.period import between, seconds_in_stage, time_between

if TYPE_CHECKING:
    from monitel_otlp.summary.report import Report


@pytest.mark.parametrize(
    ("ages", "steps"),
    [
        ((10, 5), 10),
        ((11, 9, 5), 9),
        ((60, 11), 11),  # there is none within the period
        ((11, 2), 11),  # the one within it is too young
        ((180, 11), 11),
        ((181, 2), None),  # reports are kept for three minutes
        ((180, 2), 180),
        ((12, 10.2, 5), 5),  # reports within two seconds of each other are not kept
    ],
)
def test_period_begins_with_the_first_report_in_it(ages: tuple[float, ...], steps: int | None) -> None:
    """The last ten seconds, otherwise the shortest time that is longer."""
    history = history_of(*(report_of(0, 1000 - age, 1000 - int(age)) for age in ages), report_of(0, 1000, 1000))
    found = history.last(10 * SECOND)
    assert steps == (None if found is None else found.steps)


def test_counters_of_a_period_are_never_negative() -> None:
    """A total that falls belongs to another process, or to a box that is damaged."""
    earlier = report_of(0, 100, 40, recompilations=5, recompiling_ns=9 * SECOND)
    found = between(earlier, report_of(0, 110, 60, recompilations=7, recompiling_ns=12 * SECOND))
    assert (20, 2, 3 * SECOND) == (found.steps, found.recompilations, found.recompiling_ns)
    found = between(earlier, report_of(0, 110, 30, recompilations=4, recompiling_ns=8 * SECOND))
    assert (0, 0, 0) == (found.steps, found.recompilations, found.recompiling_ns)
    assert {} == time_between(earlier, report_of(0, 110, 30))


@pytest.mark.parametrize(
    ("later", "rest"),
    [
        (Total(50, 6.0), Total(10, 1.0)),
        (Total(30, 6.0), Total(30, 6.0)),
        (Total(50, 4.0), Total(50, 4.0)),
        (Total(40, 5.0), Total(0, 0.0)),
    ],
)
def test_step_time_that_has_fallen_has_begun_again(later: Total, rest: Total) -> None:
    """Its number of samples, or its sum."""
    found = between(report_of(0, 100, 40, step_time=Total(40, 5.0)), report_of(0, 110, 50, step_time=later))
    assert rest == found.step_time


def test_seconds_of_a_stage_are_those_of_the_host() -> None:
    """All groups are added up, and no time is negative; a stage of the device is another one."""

    def report(at_s: float, first: float, second: float) -> Report:
        stages = (
            StageTotal("sync", "a", False, Total(9, first)),
            StageTotal("sync", "b", False, Total(9, second)),
            StageTotal("sync", "a", True, Total(9, 70.0 + at_s)),
            StageTotal("data", "a", False, Total(9, 80.0 + at_s)),
        )
        return report_of(0, at_s, 9, stages=stages)

    earlier, later = report(100, 2.0, 3.0), report(110, 4.5, 4.0)
    assert 3.5 == seconds_in_stage(earlier, later, "sync")
    assert 8.5 == seconds_in_stage(None, later, "sync")
    assert 0.0 == seconds_in_stage(later, earlier, "sync")
    assert seconds_in_stage(None, later, "forward") is None
