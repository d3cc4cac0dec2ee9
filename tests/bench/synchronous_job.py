"""A synchronous job in a simulation: its late rank by four ways to cut a step, the gain of mending it, and chance.

All ranks wait for each other at the end of backward. The time of each stage varies randomly (lognormal), independently
in each step and rank; a stage of one rank takes longer in addition. Nothing is measured, so every run prints the same.

Usage: python tests/bench/synchronous_job.py
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random
from statistics import fmean, median

WORK = {"optimizer": 0.010, "other": 0.005, "data": 0.010, "forward": 0.030, "backward": 0.060}
AT_THE_WAIT = (*WORK, "sync")
AT_THE_BATCH = ("data", "forward", "backward", "sync", "optimizer", "other")
STEPS = 60  # per window

Times = dict[str, float]  # by stage
Step = list[Times]  # by rank


def own_times(random: Random, ranks: int, noise: float) -> list[Step]:
    """Return the time of each stage without waiting, by step and rank."""
    return [
        [{stage: time * random.lognormvariate(0, noise) for stage, time in WORK.items()} for _ in range(ranks)]
        for _ in range(STEPS)
    ]


def delayed(steps: list[Step], stage: str, rank: int, delay: float) -> list[Step]:
    return [
        [{**times, stage: times[stage] + delay} if each == rank else times for each, times in enumerate(step)]
        for step in steps
    ]


def with_waits(steps: list[Step], *, apart: bool) -> list[Step]:
    """Return the steps with the wait for the last rank: as ``sync``, or as a part of ``backward``."""
    result = []
    for step in steps:
        last = max(sum(times.values()) for times in step)
        waits = [last - sum(times.values()) for times in step]
        result.append(
            [
                {**times, "sync": wait} if apart else {**times, "backward": times["backward"] + wait, "sync": 0.0}
                for times, wait in zip(step, waits, strict=True)
            ]
        )
    return result


def cut_at_the_batch(steps: list[Step]) -> list[Step]:
    """Move the optimizer and the rest of each step to the step before, where a loop has them."""
    moved = ("optimizer", "other")
    return [
        [{**now, **{stage: following[stage] for stage in moved}} for now, following in zip(*pair, strict=True)]
        for pair in pairwise(steps)
    ]


def means(steps: list[Step]) -> Step:
    """Return the mean of each stage, by rank: what a window reports."""
    return [
        {stage: fmean(step[rank][stage] for step in steps) for stage in steps[0][rank]} for rank in range(len(steps[0]))
    ]


def stage_late(ranks: Step) -> list[tuple[float, str, int]]:
    """Return stage less median of each stage and rank, the largest first."""
    middle = {stage: median(times[stage] for times in ranks) for stage in WORK}
    late = [(times[stage] - middle[stage], stage, rank) for rank, times in enumerate(ranks) for stage in WORK]
    return sorted(late, reverse=True)


def excess(ranks: Step, order: tuple[str, ...]) -> str:
    """Return the stage in which the frontier is furthest ahead of the stages' medians."""
    totals = [list(accumulate(times[stage] for stage in order)) for times in ranks]
    frontier = [max(total[place] for total in totals) for place in range(len(order))]
    increments = [after - before for before, after in pairwise([0.0, *frontier])]
    middle = [median(times[stage] for times in ranks) for stage in order]
    late = {stage: increments[place] - middle[place] for place, stage in enumerate(order) if stage in WORK}
    return max(late, key=lambda stage: late[stage])


def cycle(steps: list[Step]) -> float:
    """Return the mean time of a step: that of the last rank."""
    return fmean(max(sum(times.values()) for times in step) for step in steps)


def print_cuts() -> None:
    """Print how often each way to cut a step names the late rank, and how often its stage."""
    print("8 ranks, 30 ms in each stage of each rank, noise 5 %: right of 40")
    print("cut                 wait         first suspect  stage of the frontier")
    for order, where in ((AT_THE_BATCH, "at the batch"), (AT_THE_WAIT, "at the wait's end")):
        for apart, wait in ((False, "in backward"), (True, "apart")):
            suspects = stages = 0
            for case, (stage, rank) in enumerate((stage, rank) for stage in WORK for rank in range(8)):
                steps = delayed(own_times(Random(case), 8, 0.05), stage, rank, 0.030)
                seen = with_waits(steps, apart=apart)
                window = means(seen if order == AT_THE_WAIT else cut_at_the_batch(seen))
                suspects += stage_late(window)[0][1:] == (stage, rank)
                stages += excess(window, order) == stage
            print(f"{where:<20}{wait:<13}{suspects:<15}{stages}")


def print_gains() -> None:
    """Print what a job gains if a delay of 30 ms is removed."""
    print("\n8 ranks, 30 ms: mean of 40 jobs\nnoise  lateness  the step is shorter without it by")
    for noise in (0.0, 0.05, 0.20):
        late, gain = [], []
        for case in range(40):
            healthy = own_times(Random(case), 8, noise)
            stage, rank = list(WORK)[case % 5], case // 5
            steps = delayed(healthy, stage, rank, 0.030)
            late.append(stage_late(means(steps))[0][0])
            gain.append(cycle(steps) - cycle(healthy))
        print(f"{noise:4.0%}   {fmean(late) * 1e3:4.1f} ms   {fmean(gain) * 1e3:4.1f} ms")


def print_chance() -> None:
    """Print the largest lateness of jobs in which no rank is late."""
    print(f"\nno rank late, windows of {STEPS} steps of 115 ms without noise: the largest lateness of 5 windows")
    print("ranks  noise  stage_late  of the cycle")
    for ranks in (8, 64, 512):
        for noise in (0.05, 0.20):
            windows = [own_times(Random(case), ranks, noise) for case in range(5)]
            largest, length = max((stage_late(means(steps))[0][0], cycle(steps)) for steps in windows)
            print(f"{ranks:5}  {noise:5.0%}  {largest * 1e3:7.1f} ms  {largest / length:.1%}")


def print_windows() -> None:
    """Print how often short windows name a rank that is late in some steps only."""
    print("\n8 ranks, 30 ms in one stage of one rank, noise 5 %: first suspect right of 200 windows")
    print("steps per window  in each step  in one step of ten")
    for length in (2, 5, 20, 60):
        right = {1: 0, 10: 0}
        for case in range(200):
            random = Random(case)
            stage, rank = list(WORK)[case % 5], case % 8
            steps = own_times(random, 8, 0.05)[:length]
            for every in right:
                late = delayed(steps, stage, rank, 0.030)
                window = [late[step] if random.randrange(every) == 0 else steps[step] for step in range(length)]
                right[every] += stage_late(means(window))[0][1:] == (stage, rank)
        print(f"{length:<18}{right[1]:<14}{right[10]}")


if __name__ == "__main__":
    print_cuts()
    print_gains()
    print_chance()
    print_windows()
