"""The lateness of ranks, by the usual times of their stages. The rules of ``compose/`` do the same in PromQL.

Times are those of the ranks of one group: a mapping from rank to the seconds of each stage in one cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from monitel.runs.process import Process

Times: TypeAlias = Mapping[int, Mapping[str, float]]

#: The stages of a cycle, in their order.
STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")
ENOUGH_STEPS = 20  # that a process must have made in a period, for its usual times
_SUSPECT = 0.02  # of the cycle
_PAIR = 2  # ranks of which neither is the median


def stage_late(times: Times) -> dict[tuple[int, str], float]:
    """Return by how many seconds each rank is later than the median rank in each stage except ``sync``."""
    return {
        (rank, stage): late
        for stage in STAGES[:-1]
        for rank, late in _above_median({rank: of[stage] for rank, of in times.items() if stage in of}).items()
    }


def rank_late(times: Times) -> dict[int, float]:
    """Return by how many seconds each rank waits less than the median rank."""
    return _above_median({rank: -of["sync"] for rank, of in times.items() if "sync" in of})


def exposed(times: Times) -> dict[str, float]:
    """Return the seconds of the cycle that each stage takes on the rank that is furthest; they add up to the cycle."""
    ends = [list(accumulate(of.get(stage, 0.0) for stage in STAGES)) for of in times.values()]
    frontier = [0.0, *map(max, zip(*ends, strict=True))]
    return {
        stage: end - begin
        for stage, begin, end in zip(STAGES, frontier, frontier[1:], strict=False)
        if any(stage in of for of in times.values())
    }


def cycle(times: Times) -> float:
    return sum(exposed(times).values())


def suspects(times: Times) -> list[tuple[float, int, str]]:
    """Return seconds, rank and stage wherever both kinds of lateness exceed 2 % of the cycle, the largest first.

    A rank has no suspect stage if its cycle differs from that of the median rank by half of the lateness or more.
    """
    least = _SUSPECT * cycle(times)
    late = {rank for rank, seconds in rank_late(times).items() if seconds > least}
    cycles = {rank: sum(of.values()) for rank, of in times.items()}
    middle = median(cycles.values())
    factor = 2 if sum("sync" in of for of in times.values()) == _PAIR else 1
    apart = {rank: factor * abs(seconds - middle) for rank, seconds in cycles.items()}
    found = [(seconds, rank, stage) for (rank, stage), seconds in stage_late(times).items() if rank in late]
    return sorted((each for each in found if each[0] > max(least, 2 * apart[each[1]])), reverse=True)


def _above_median(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return each value less the median: of two the difference, because their median lies halfway; of one nothing."""
    if len(seconds) < _PAIR:
        return {}
    factor = 2 if len(seconds) == _PAIR else 1
    middle = median(seconds.values())
    return {rank: factor * (value - middle) for rank, value in seconds.items()}


def stage_times(process: Process, *, device: bool = False) -> dict[str, dict[str, float]]:
    """Return the usual seconds of the stages of a process by group, on the host or on the device."""
    found: dict[str, dict[str, float]] = {}
    for key, total in process.stages.items():
        if key.device == device and total.count:
            found.setdefault(key.group, {})[key.stage] = total.usual
    return found


def compared_times(processes: Iterable[Process]) -> dict[str, Times]:
    """Return the times of each group of several ranks: on the device if all of them have them there."""
    ranks, found = {each.rank: each for each in processes if each.rank is not None}, dict[str, Times]()
    for device in (False, True):
        groups: dict[str, dict[int, Mapping[str, float]]] = {}
        for rank, process in ranks.items():
            for group, stages in stage_times(process, device=device).items():
                groups.setdefault(group, {})[rank] = stages
        found |= {group: times for group, times in groups.items() if times.keys() >= found.get(group, {}).keys()}
    return {group: times for group, times in sorted(found.items()) if len(times) > 1}
