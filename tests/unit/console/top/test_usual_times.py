"""The parts of a period, and the medians over them."""

from __future__ import annotations

import pytest
from tests.unit.console.top.made_rows import SECOND, history_of, report_of

from monitel_otlp.summary.report import Report, StageTotal, Total
from monitel_otlp.summary.usual_times import parts_of, usual_data, usual_stages


def reports_with(steps: list[int]) -> list[Report]:
    """Return reports, one each two seconds, after so many steps."""
    return [report_of(0, 100 + 2 * number, made) for number, made in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([0, 4, 8, 12, 16, 20], [0, 4, 8, 12, 16, 20]),
        ([0, 5, 10, 15, 20], []),  # four parts
        ([0, 1, 2, 2, 2, 10, 20, 30, 40, 50], [0, 10, 20, 30, 40, 50]),  # five steps a part, at least
        ([0, 0, 0], []),
        ([*range(0, 310, 10)], [*range(0, 301, 20)]),  # fifteen parts
        ([9], []),
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


def test_period_without_parts() -> None:
    """Either it is too short, or looks are too far apart: then the stages are those of the life."""
    stages = [(StageTotal("forward", "", False, Total(count, count * 0.1, 1, 0.2)),) for count in (100, 120)]
    for seconds, known in ((19, False), (20, True)):
        history = history_of(
            report_of(0, 100, 100, stages=stages[0]), report_of(0, 100 + seconds, 120, stages=stages[1])
        )
        found = history.usual(60 * SECOND)
        assert known == (found is not None)
        if found is not None:
            assert found.report is not None
            assert (20, stages[1]) == (found.steps, found.report.stages)


def test_period_is_looked_at_again_after_five_seconds() -> None:
    """Nothing changes much before, and there may be many ranks. A process that begins again is another one."""
    history = history_of(*(report_of(0, 100 + 2 * number, 10 * number) for number in range(31)))
    steps = []
    for at_s in range(161, 167):
        found = history.usual(60 * SECOND)
        assert found is not None
        steps.append(found.steps)
        history.add(report_of(0, at_s, 400))
    assert [300, 300, 300, 300, 300, 300] == steps
    found = history.usual(60 * SECOND)
    assert found is not None
    assert found.steps > 300
    history.add(report_of(0, 167, 5))
    assert found is not history.usual(60 * SECOND)


@pytest.mark.parametrize(
    ("total", "usual"),
    [
        (Total(100, 20.0), 0.2),
        (Total(101, 20.0, 1, 10.0), 0.1),
        (Total(10, 20.0, 1, 2.0), 2.0),
        (Total(9, 20.0, 1, 11.0), 20 / 9),  # too few samples in a window
        (Total(20, 5.0, 1, 6.0), 0.0),
    ],
)
def test_mean_without_the_longest_of_each_window(total: Total, usual: float) -> None:
    """A single pause is not in it."""
    assert pytest.approx(usual) == total.usual


def test_total_since_an_earlier_one() -> None:
    """Windows that have begun again are not known; samples that have done so count all."""
    later = Total(50, 6.0, 2, 3.0)
    assert Total(10, 1.0, 1, 0.5) == later.since(Total(40, 5.0, 1, 2.5))
    assert Total(10, 1.0) == later.since(Total(40, 5.0, 3, 2.5))
    assert Total(10, 1.0) == later.since(Total(40, 5.0, 1, 3.5))
    assert later == later.since(Total(60, 5.0, 1, 2.0))
