"""The last minutes of a process: the rate of its steps, and its usual times, which no single pause changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import sub
from pathlib import Path
from statistics import median
from typing import Any

from monitel.blackbox.context_page import Context, quantile
from monitel.console.lateness import ENOUGH_STEPS
from monitel.runs.process import NO_SAMPLES, Process, StageKey, Total
from monitel.training.counters import DOWN

_S = 10**9
_RECENT_NS = 10 * _S  # that rates and shares are about
_LATE = 2  # times the time between the last two steps that were seen, after which a step is overdue and the rate falls
_OVERDUE = 10  # steps: the same, if no step was seen
_ENOUGH_TIMES = 100  # steps, for quantiles of their times

_LEAST, _MOST, _STEPS = 5, 15, 5  # parts of a period, and steps in one; in the least number of parts there may be fewer
_LEAST_NS = 3 * _S  # of a period; a shorter one has too few snapshots
_APART_NS = 19 * _S // 10  # between two looks that are kept: there is a snapshot each second
_PERIODS_NS = 60 * _S, 180 * _S


class Looks:
    """The looks at one process in the last three minutes, the oldest first."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Process, Context]] = deque()

    def add(self, process: Process, page: Context = Context()) -> None:  # noqa: B008  it is immutable
        kept = self._kept
        if len(kept) > 1 and kept[-1][0].time_ns - kept[-2][0].time_ns < _APART_NS:
            kept.pop()
        kept.append((process, page))
        while process.time_ns - kept[0][0].time_ns > _PERIODS_NS[-1]:
            kept.popleft()

    def numbers(self) -> dict[str, Any]:
        """Return numbers of a row of ``monitel top``.

        Shares are those of the last ten seconds; of the life until three seconds were observed. Quantiles are those of
        all looks, or of the life if there are fewer than 100 steps in these.
        """
        process, page = self._kept[-1]
        earlier = self._earlier(_RECENT_NS)
        recent = process if earlier is None else process.since(earlier)
        elapsed_ns = sum(recent.activities.values()) - recent.activities.get(DOWN, 0)
        data = waiting = None
        if elapsed_ns > 0:
            data, stuck = (recent.activities.get(name, 0) / elapsed_ns for name in ("data", "stuck"))
            sync = [total.sum for key, total in recent.stages.items() if key.stage == "sync" and not key.device]
            waiting = min(max(sum(sync) * _S / elapsed_ns, stuck), 1.0) if sync or stuck else None
        times = counts = page.step_times
        if (first := self._kept[0][1].step_times) and times:
            since = [*map(sub, times, first)]
            counts = tuple(since) if sum(since) >= _ENOUGH_TIMES and min(since) >= 0 else times
        slowest = quantile(counts, 0.99) if sum(counts) >= _ENOUGH_TIMES else None
        return {"data": data, "waiting": waiting, "step_p50": quantile(counts, 0.5), "step_p99": slowest}

    def rate(self, process: Process, now_ns: int) -> float | None:
        """Return steps per second over the last ten seconds that were seen; before, the mean of the life.

        The ten seconds end with the last step, or now, at a monotonic time, if the next one is overdue.
        """
        marks: list[tuple[int, int]] = []  # steps, and the monotonic times of their begin, the latest first
        for _, page in reversed(self._kept):
            if page.step is None or page.step_ns is None:
                break  # the steps had not begun
            if marks and (page.step > marks[-1][0] or page.step_ns > marks[-1][1]):
                break  # they were others
            if not marks or page.step < marks[-1][0]:
                marks.append((page.step, page.step_ns))
            if marks[0][1] - page.step_ns > _RECENT_NS:
                break
        mean = process.mean_rate
        if len(marks) < 2:  # noqa: PLR2004  the ends of an interval
            age_ns = process.step_age_ns or 0
            overdue = mean is not None and age_ns * mean > _OVERDUE * _S
            return mean * max(_RECENT_NS - age_ns, 0) / _RECENT_NS if mean is not None and overdue else mean
        (last, last_ns), (_, before_ns) = marks[:2]
        end_ns = now_ns if now_ns - last_ns > _LATE * (last_ns - before_ns) else last_ns
        first, first_ns = next((mark for mark in marks if mark[1] <= end_ns - _RECENT_NS), marks[-1])
        return (last - first) * _S / (end_ns - first_ns)

    def _earlier(self, period_ns: int) -> Process | None:
        """Return the process before the last nanoseconds; None if fewer than three seconds were observed.

        It is fewer nanoseconds if no more were observed, and more if looks are farther apart.
        """
        found = None
        for each, _ in self._kept:
            age_ns = self._kept[-1][0].time_ns - each.time_ns
            if age_ns < _LEAST_NS:
                break
            found = each
            if age_ns <= period_ns:
                break
        return found

    def usual(self, process: Process, period_ns: int) -> Process | None:
        """Return the process with the totals and the usual times of the last nanoseconds: those of parts of the time.

        It is None if the looks do not divide the time into enough parts.
        """
        earlier = self._earlier(period_ns)
        parts = [] if earlier is None else self._parts(earlier)
        if earlier is None or not parts:
            return None
        found = process.since(earlier)
        return found.but(stages=_usual_stages(parts, found))

    def _parts(self, earlier: Process) -> list[Process]:
        """Return the looks that divide a period into parts with about as many steps each; none for fewer than five."""
        steps = self._kept[-1][0].made - earlier.made
        number = min(max(steps // _STEPS, _LEAST), _MOST)
        ends = [earlier]
        for each, _ in self._kept:
            made = each.made - ends[-1].made
            if each.time_ns > earlier.time_ns and made > 0 and made * number >= steps:
                ends.append(each)
        return ends if len(ends) > _LEAST else []


def _usual_stages(parts: Sequence[Process], period: Process) -> dict[StageKey, Total]:
    """Return the stages of a period with their usual times: the medians of the means of its parts."""
    found: dict[StageKey, Total] = {}
    for key, total in period.stages.items():
        totals = [each.stages.get(key, NO_SAMPLES) for each in parts]
        rests = [(after.count - before.count, after.sum - before.sum) for before, after in pairwise(totals)]
        means = [seconds / count for count, seconds in rests if count > 0 and seconds >= 0]
        found[key] = Total(total.count, total.count * median(means)) if means else total
    return found


def over_a_period(processes: Sequence[Process], looks: Mapping[Path, Looks]) -> tuple[Process, ...]:
    """Return the processes of a job with the totals of one period, by their looks, of which some may be missing.

    It is the last minute, or the last three, if all readable processes that run have made twenty steps in it; otherwise
    the life of the processes.
    """
    running = {each.box for each in processes if each.runs and not each.problem}
    for period_ns in _PERIODS_NS if running else ():
        found = [looks[each.box].usual(each, period_ns) if each.box in looks else None for each in processes]
        if running <= {each.box for each in found if each is not None and each.made >= ENOUGH_STEPS}:
            return tuple(each or life.since(life) for each, life in zip(found, processes, strict=True))
    return tuple(processes)
