"""The part of a process's totals that belongs to the last seconds, and usual times, which no single pause changes."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from monitel.console.summary.report import NO_SAMPLES, StageTotal, Total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.summary.report import Report

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


_LEAST_NS = 3 * 10**9  # of a period; a shorter one has too few cuts
_APART_NS = 19 * 10**8  # between two reports that are kept: there is a cut each second, and one with each request
_LONG_ENOUGH_NS = 20 * 10**9  # for a period that has no parts
_LATER_NS = 5 * 10**9  # after which a long period is looked at again
_LONGEST_NS = 180 * 10**9  # that reports are kept for


class Usual(NamedTuple):
    """A period with its usual times.

    Attributes:
        report: The report about it; None if it is not known.
        data: The usual share of data in the time of ``data`` and ``step``; None if unknown, or if there are stages.
        until_ns: Time up to which it is not too old for the report of a new cut, Unix ns.
        made: Steps of the life at its end.
    """

    report: Report | None = None
    data: float | None = None
    until_ns: int = 0
    made: int = 0

    @property
    def steps(self) -> int:
        """Number of steps in the period."""
        return 0 if self.report is None else self.report.made


class History:
    """The latest reports of one process about its life so far."""

    def __init__(self) -> None:
        self._kept: deque[Report] = deque()
        self._life: Report | None = None
        self._usual: dict[int, Usual] = {}  # by period

    def add(self, report: Report) -> None:
        """Add the report of a new cut."""
        self._life, now_ns = report, report.time_ns
        if not self._kept or now_ns - self._kept[-1].time_ns >= _APART_NS:
            self._kept.append(report)
        while now_ns - self._kept[0].time_ns > _LONGEST_NS:
            self._kept.popleft()

    @property
    def life(self) -> Report | None:
        """The report about the whole life; None without a cut."""
        return self._life

    def earlier(self, period_ns: int) -> Report | None:
        """Return the report at the begin of the last nanoseconds.

        It is that of fewer nanoseconds if no more were observed, and that of more if looks are farther apart.

        Returns:
            None if fewer than three seconds were observed.
        """
        if self._life is None:
            return None
        ages_ns = [(self._life.time_ns - each.time_ns, each) for each in self._kept]
        old_enough = [(age_ns, each) for age_ns, each in ages_ns if age_ns >= _LEAST_NS]
        within = (each for age_ns, each in old_enough if age_ns <= period_ns)
        return next(within, old_enough[-1][1] if old_enough else None)

    def last(self, period_ns: int) -> Report | None:
        """Return the report about that time; None if fewer than three seconds were observed."""
        earlier = self.earlier(period_ns)
        return None if earlier is None or self._life is None else between(earlier, self._life)

    def usual(self, period_ns: int) -> Usual | None:
        """Return that time with its usual times: those of its parts. It may be five seconds old.

        If looks are far apart, the time has too few parts; then the usual times of stages are those of the life.

        Returns:
            None if the time has too few parts, because it was not observed for long enough.
        """
        life, known = self._life, self._usual.get(period_ns)
        if life is None:
            return None
        if known is not None and (known.report is None or life.time_ns > known.until_ns or life.made < known.made):
            known = None
        if known is None:
            known = self._usual[period_ns] = self._computed(life, period_ns)
        return None if known.report is None else known

    def _computed(self, life: Report, period_ns: int) -> Usual:
        earlier = self.earlier(period_ns)
        if earlier is None:
            return Usual()
        time_ns = life.time_ns - earlier.time_ns
        until_ns = life.time_ns + (_LATER_NS if time_ns >= _LONG_ENOUGH_NS else 0)
        found, parts = between(earlier, life), self._parts(earlier)
        if parts:
            found = replace(found, stages=usual_stages(parts, found.stages))
        elif time_ns < _LONG_ENOUGH_NS:
            return Usual()
        else:
            found = replace(found, stages=life.stages)
        return Usual(found, None if found.stages else usual_data(parts), until_ns, life.made)

    def _parts(self, earlier: Report) -> list[Report]:
        reports = [each for each in self._kept if each.time_ns >= earlier.time_ns]
        if self._life is not None and self._life is not reports[-1]:
            reports.append(self._life)
        return parts_of(reports)


def between(earlier: Report, later: Report) -> Report:
    """Return the report about the time between two reports of a process. A total that has fallen has begun again."""
    stages = {(each.stage, each.group, each.device): each.total for each in earlier.stages}
    return replace(
        later,
        steps=max(later.made - earlier.made, 0),
        skipped=0,
        recompilations=max(later.recompilations - earlier.recompilations, 0),
        recompiling_ns=max(later.recompiling_ns - earlier.recompiling_ns, 0),
        first_step=None,
        step_time=later.step_time.since(earlier.step_time),
        stages=tuple(
            StageTotal(*each[:3], rest)
            for each in later.stages
            if (rest := each.total.since(stages.get((each.stage, each.group, each.device), NO_SAMPLES))).count
        ),
        activities=time_between(earlier, later),
    )


def time_between(earlier: Report | None, later: Report) -> dict[str, int]:
    """Return nanoseconds by activity between two reports of a process, or in its life up to the later one."""
    before = {} if earlier is None else earlier.activities
    return {name: rest for name, time_ns in later.activities.items() if (rest := time_ns - before.get(name, 0)) > 0}


def seconds_in_stage(earlier: Report | None, later: Report, stage: str) -> float | None:
    """Return seconds of a stage on the host, as :func:`time_between`; None if the process has no such stage."""
    after = [each.total.sum for each in later.stages if each.stage == stage and not each.device]
    if not after:
        return None
    before = () if earlier is None else earlier.stages
    rest = sum(after) - sum(each.total.sum for each in before if each.stage == stage and not each.device)
    return max(rest, 0.0)
