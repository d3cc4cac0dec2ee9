"""The last seconds of a process: rate and times of its steps, and usual times, which no single pause changes."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from operator import sub
from statistics import median
from typing import TYPE_CHECKING

from monitel.console.verdict import ENOUGH_STEPS
from monitel.process.context_page import unpack_step_times
from monitel.runs.process import NO_SAMPLES, Process, Total
from monitel.training.step_times import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from monitel.runs.process import StageKey

RATE_NS = 10 * 10**9  # of the last steps that a rate is about
_MOST_MARKS = 256
_LATE = 2  # times the time between the last two marks, after which a step is overdue and the rate falls


class StepRate:
    """Steps per second, from steps that are noted again and again."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MOST_MARKS)  # steps, and the monotonic times of their begin

    def note(self, step: int, set_ns: int) -> None:
        """Note the current step, and the monotonic time at which it was set. A step that falls is a new beginning."""
        last = self._marks[-1] if self._marks else None
        if last is not None and (step < last[0] or set_ns < last[1]):
            self._marks.clear()
            last = None
        if last is None or (step > last[0] and set_ns > last[1]):
            self._marks.append((step, set_ns))

    def rate(self, now_ns: int) -> float | None:
        """Return steps per second over the last ten seconds; None if no step was seen to end.

        The time since the last step counts as soon as it is twice as long as that step.

        Args:
            now_ns: Monotonic time.
        """
        if len(self._marks) < 2:  # noqa: PLR2004  the ends of an interval
            return None
        end_ns = now_ns if self._is_overdue(now_ns) else self._marks[-1][1]
        begin_ns = max(end_ns - RATE_NS, self._marks[0][1])
        return self._steps_since(begin_ns) * 1e9 / (end_ns - begin_ns)

    def _steps_since(self, time_ns: int) -> float:
        """Return the steps since a time after the first mark; between two marks they rise steadily."""
        last = after = self._marks[-1]
        for before in reversed(self._marks):
            if before[1] <= time_ns:
                share = (time_ns - before[1]) / ((after[1] - before[1]) or 1)
                return last[0] - before[0] - share * (after[0] - before[0])  # exact for large steps
            after = before
        return last[0] - after[0]

    def _is_overdue(self, now_ns: int) -> bool:
        last, before = self._marks[-1], self._marks[-2]
        return now_ns - last[1] > _LATE * (last[1] - before[1])


_DISTRIBUTION_NS = 180 * 10**9  # that quantiles are about
_READINGS_NS = 10 * 10**9  # between two readings that are kept
_ENOUGH_TIMES = 100  # steps


class StepDistribution:
    """The distribution of the step times of one process, as it counts them itself.

    It is that of the last three minutes that were observed. If they have fewer than 100 steps, it is that of all steps
    of the process.

    Attributes:
        median: The median, seconds; None without a step.
        p99: The time that 99 of 100 steps do not exceed, seconds; None with fewer than 100 steps.
    """

    def __init__(self) -> None:
        self.median: float | None = None
        self.p99: float | None = None
        self._kept: deque[tuple[int, bytes]] = deque()  # monotonic time, and the counters
        self._last = b""

    def see(self, counters: bytes, now_ns: int) -> None:
        """Take over the counters of a reading, as :func:`monitel.process.context_page.read_step_times` returns them."""
        kept = self._kept
        if not kept or now_ns - kept[-1][0] >= _READINGS_NS:
            kept.append((now_ns, counters))
        forgotten = now_ns - kept[0][0] > _DISTRIBUTION_NS
        while now_ns - kept[0][0] > _DISTRIBUTION_NS:
            kept.popleft()
        if forgotten or counters != self._last:
            self._last = counters
            life = unpack_step_times(counters)
            recent = [*map(sub, life, unpack_step_times(kept[0][1]))]
            counts: Sequence[int] = recent if sum(recent) >= _ENOUGH_TIMES and min(recent) >= 0 else life
            self.median = quantile(counts, 0.5)
            self.p99 = quantile(counts, 0.99) if sum(counts) >= _ENOUGH_TIMES else None


_LEAST, _MOST, _STEPS = 5, 15, 5  # parts of a period, and steps in one; in the least number of parts there may be fewer
_SHARES_NS = 10 * 10**9
_LEAST_NS = 3 * 10**9  # of a period; a shorter one has too few snapshots
_APART_NS = 19 * 10**8  # between two that are kept: there is a snapshot each second, and one with each request
_LONG_ENOUGH_NS = 20 * 10**9  # for a period that has no parts
_LONGEST_NS = 180 * 10**9  # that a process is kept for


class History:
    """The latest snapshots of one process.

    Attributes:
        life: The last one; before, a process without totals.
    """

    def __init__(self) -> None:
        self.life = Process()
        self._kept: deque[Process] = deque()

    def add(self, life: Process) -> None:
        """Add a process as of a new snapshot."""
        self.life, now_ns = life, life.time_ns
        if not self._kept or now_ns - self._kept[-1].time_ns >= _APART_NS:
            self._kept.append(life)
        while now_ns - self._kept[0].time_ns > _LONGEST_NS:
            self._kept.popleft()

    @property
    def recent(self) -> Process:
        """The totals of the last ten seconds; those of the life until three seconds were observed."""
        earlier = self._earlier(_SHARES_NS)
        return self.life if earlier is None else self.life.since(earlier)

    def _earlier(self, period_ns: int) -> Process | None:
        """Return the process before the last nanoseconds; None if fewer than three seconds were observed.

        It is fewer nanoseconds if no more were observed, and more if looks are farther apart.
        """
        found = None
        for each in self._kept:
            age_ns = self.life.time_ns - each.time_ns
            if age_ns < _LEAST_NS:
                break
            found = each
            if age_ns <= period_ns:
                break
        return found

    def usual(self, period_ns: int) -> Process | None:
        """Return the totals of the last nanoseconds with their usual times: those of parts of the time.

        If looks are far apart, the time has too few parts; then the usual times of stages are those of the life.

        Returns:
            None if the time has too few parts, because it was not observed for long enough.
        """
        life, earlier = self.life, self._earlier(period_ns)
        if earlier is None:
            return None
        found, parts = life.since(earlier), self._parts(earlier, life)
        if not parts and life.time_ns - earlier.time_ns < _LONG_ENOUGH_NS:
            return None
        found = found.but(stages=_usual_stages(parts, found) if parts else life.stages)
        return found if found.stages else found.but(usual_data=_usual_data(parts))

    def _parts(self, earlier: Process, life: Process) -> list[Process]:
        """Return the snapshots that divide a period into parts with about as many steps each.

        Returns:
            One more than there are parts; none if the period has fewer than five parts with steps.
        """
        steps = life.made - earlier.made
        number = min(max(steps // _STEPS, _LEAST), _MOST)
        ends = [earlier]
        for each in [*(kept for kept in self._kept if kept.time_ns > earlier.time_ns), life]:
            made = each.made - ends[-1].made
            if made > 0 and made * number >= steps:
                ends.append(each)
        return ends if len(ends) > _LEAST else []


def _usual_stages(parts: Sequence[Process], period: Process) -> dict[StageKey, Total]:
    """Return the stages of a period with their usual times: the medians of the means of its parts."""
    found: dict[StageKey, Total] = {}
    for key, total in period.stages.items():
        rests = [
            (after.count - before.count, after.sum - before.sum)
            for before, after in pairwise([each.stages.get(key, NO_SAMPLES) for each in parts])
        ]
        means = [seconds / count for count, seconds in rests if count > 0 and seconds >= 0]
        found[key] = Total(total.count, total.count * median(means)) if means else total
    return found


def _usual_data(parts: Sequence[Process]) -> float | None:
    """Return the usual share of ``data`` in the time of ``data`` and ``step``; None if it is not known."""
    times = [(each.activities.get("data", 0), each.activities.get("step", 0)) for each in parts]
    rests = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(times)]
    shares = [data / (data + step) for data, step in rests if data >= 0 and step >= 0 and data + step > 0]
    return median(shares) if shares else None


_PERIODS_NS = 60 * 10**9, 180 * 10**9
_TOTALS = (
    *("first_step", "made", "unmade_ns", "skipped", "step_time", "stages", "activities", "recompilations"),
    *("recompiling_ns", "usual_data"),
)


def over_a_period(processes: Sequence[Process], histories: Mapping[Path, History]) -> tuple[Process, ...]:
    """Return the processes of a job with the totals of one period.

    It is the last minute, or the last three, if all readable processes that run have made twenty steps in it; otherwise
    the life of the processes.

    Args:
        processes: The processes, with the totals of their lives.
        histories: The history of each, by its box; it may be missing.
    """
    running = [each.box for each in processes if each.runs and not each.problem]
    known = {each.box: histories[each.box] for each in processes if each.box in histories}
    for period_ns in _PERIODS_NS if running else ():
        periods = {box: period for box, history in known.items() if (period := history.usual(period_ns))}
        if all(box in periods and periods[box].made >= ENOUGH_STEPS for box in running):
            return tuple(with_totals(each, periods.get(each.box, Process())) for each in processes)
    return tuple(processes)


def with_totals(process: Process, of: Process) -> Process:
    """Return a process with the totals of another period."""
    return process.but(**{name: getattr(of, name) for name in _TOTALS})
