"""The period of a verdict, its parts, and the medians over them."""

from __future__ import annotations

import pytest
from tests.unit.console.made_rows import SECOND, report_of

from monitel_otlp.summary.report import Report, StageTotal, Total
from monitel_otlp.summary.usual_times import parts_of, usual_data, usual_stages
from monitel_otlp.top.period import between, time_between


def reports_with(steps: list[int]) -> list[Report]:
    """Return reports, one each two seconds, after so many steps."""
    return [report_of(0, 100 + 2 * number, made) for number, made in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([0, 4, 8, 12, 16, 20], [0, 4, 8, 12, 16, 20]),
        ([0, 1, 2, 2, 2, 10, 20, 30, 40, 50], [0, 10, 20, 30, 40, 50]),  # five steps a part, at least
        ([*range(0, 310, 10)], [*range(0, 301, 20)]),  # fifteen parts
    ],
)
def test_parts_have_about_as_many_steps(steps: list[int], ends: list[int]) -> None:
    """Parts without steps do not count, however long a pause is."""
    assert ends == [each.made for each in parts_of(reports_with(steps))]


def test_usual_times_are_medians() -> None:
    """Each part has a mean, and the median of these counts. A stage without samples there keeps its total."""
    sums = [0.0, 1.0, 2.0, 13.0, 14.0, 15.0]
    parts = [
        report_of(0, number, 10 * number, stages=(StageTotal("forward", "", False, Total(10 * number, seconds)),))
        for number, seconds in enumerate(sums)
    ]
    later = StageTotal("forward", "", False, Total(50, 15.0))
    new = StageTotal("sync", "", False, Total(9, 1.0, 1, 0.5))
    assert (StageTotal("forward", "", False, Total(50, 5.0)), new) == usual_stages(parts, [later, new])


def test_usual_share_of_data_is_a_median() -> None:
    """The wait of a part is not that of the others."""
    parts = [
        report_of(
            0, number, number, activities={"data": (number + 30 * (number > 2)) * SECOND, "step": 9 * number * SECOND}
        )
        for number in range(6)
    ]
    assert pytest.approx(0.1) == usual_data(parts)
    assert usual_data([]) is None


@pytest.mark.parametrize(
    ("total", "usual"),
    [
        (Total(101, 20.0, 1, 10.0), 0.1),
        (Total(9, 20.0, 1, 11.0), 20 / 9),  # too few samples in a window
    ],
)
def test_mean_without_the_longest_of_each_window(total: Total, usual: float) -> None:
    """A single pause is not in it."""
    assert pytest.approx(usual) == total.usual


def test_counters_of_a_period_are_never_negative() -> None:
    """A total that falls belongs to another process, or to a box that is damaged."""
    earlier = report_of(0, 100, 40, recompilations=5, recompiling_ns=9 * SECOND)
    found = between(earlier, report_of(0, 110, 60, recompilations=7, recompiling_ns=12 * SECOND))
    assert (20, 2, 3 * SECOND) == (found.steps, found.recompilations, found.recompiling_ns)
    found = between(earlier, report_of(0, 110, 30, recompilations=4, recompiling_ns=8 * SECOND))
    assert (0, 0, 0) == (found.steps, found.recompilations, found.recompiling_ns)
    assert {} == time_between(earlier, report_of(0, 110, 30))
