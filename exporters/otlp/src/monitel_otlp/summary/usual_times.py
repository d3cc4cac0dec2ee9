"""The usual times of a period: medians over its parts, which a single pause does not change."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from monitel_otlp.summary.report import NO_SAMPLES, StageTotal, Total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.summary.report import Report

_LEAST, _MOST = 5, 15  # parts
_STEPS = 5  # in a part; in the least number of parts there may be fewer


def parts_of(reports: Sequence[Report]) -> list[Report]:
    """Return the reports that divide a period into parts with about as many steps each.

    Args:
        reports: The reports about a process from the begin to the end of the period.

    Returns:
        One report more than there are parts; none if the period has fewer than five parts with steps.
    """
    steps = reports[-1].made - reports[0].made
    number = min(max(steps // _STEPS, _LEAST), _MOST)
    ends = [reports[0]]
    for report in reports[1:]:
        made = report.made - ends[-1].made
        if made > 0 and made * number >= steps:
            ends.append(report)
    return ends if len(ends) > _LEAST else []


def usual_stages(parts: Sequence[Report], stages: Sequence[StageTotal]) -> tuple[StageTotal, ...]:
    """Return the stages of a period with their usual times: the medians of the means of its parts.

    Args:
        parts: The reports that divide the period.
        stages: The stages with all of their samples.
    """
    totals = [{each[:3]: each.total for each in report.stages} for report in parts]
    found = []
    for stage in stages:
        key = stage[:3]
        rests = [
            (after.count - before.count, after.sum - before.sum)
            for before, after in pairwise([each.get(key, NO_SAMPLES) for each in totals])
        ]
        means = [seconds / count for count, seconds in rests if count > 0 and seconds >= 0]
        count = stage.total.count
        found.append(StageTotal(*key, Total(count, count * median(means))) if means else stage)
    return tuple(found)


def usual_data(parts: Sequence[Report]) -> float | None:
    """Return the usual share of ``data`` in the time of ``data`` and ``step``; None if it is not known."""
    times = [(report.activities.get("data", 0), report.activities.get("step", 0)) for report in parts]
    rests = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(times)]
    shares = [data / (data + step) for data, step in rests if data >= 0 and step >= 0 and data + step > 0]
    return median(shares) if shares else None
