"""The rules of docs/reference/verdicts.md: jobs described by plain facts, and the verdict about each."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel.blackbox.activity import Wait
from monitel.console.job import Job
from monitel.console.verdict import Verdict
from monitel.runs.process import JobName, Process, StageKey, State, Total
from monitel.training.activities import Stage

#: Facts about a process by the names of the arguments of :func:`process`; all times are seconds.
Facts = dict[str, Any]


def ns(seconds: float | None) -> Any:
    return None if seconds is None else round(seconds * 1e9)


def verdict_of(job: Sequence[Facts]) -> Verdict:
    return Job(JobName(), None, tuple(process(**each) for each in job)).verdict


def process(
    rank: int | None = 0,
    of: int = 0,
    *,
    state: str = "alive",
    seen: float = 0.0,
    silent: float | None = None,  # since the last sign of life
    since_step: float | None = None,
    steps: int = 0,
    usual_step: float | None = None,
    longest_step: float = 0.0,  # the longest steps of the windows, added up
    time: Mapping[str, float] = {},
    activity: tuple[str, float | None] = ("", None),
    recompilations: tuple[int, float] = (0, 0.0),
    stages: Mapping[str, float] = {},
    group: str = "",
    longest: Mapping[str, float] = {},
    waits: Mapping[str, float] = {},
    stage: tuple[str, float, bool] | None = None,  # with its time, and whether the rank waits for others in it
    **others: Any,
) -> Process:
    samples = max(steps, 1)
    totals = {}
    for name, seconds in stages.items():
        largest = longest.get(name, 0.0) * samples  # of one window, beside which the others take the usual time
        total = seconds * (samples - 1) + largest if name in longest else seconds * samples
        totals[StageKey(group, name)] = Total(samples, total, int(name in longest), largest)
    fields: Facts = {
        "pid": 100 + (rank or 0),
        "time_ns": ns(1000.0 if silent is None or state == "silent" else seen + silent),
        "seen_ns": ns(1000.0 - silent if silent is not None and state == "silent" else seen),
        "step_time": Total() if usual_step is None else Total(samples, samples * usual_step, 1, longest_step),
        "activities": {name: ns(seconds) for name, seconds in time.items()},
        "activity": activity[0],
        "activity_age_ns": ns(activity[1]),
        "recompilations": recompilations[0],
        "recompiling_ns": ns(recompilations[1]),
        "waits": tuple(Wait(key, ns(seconds)) for key, seconds in waits.items()),
        "stage": stage and Stage(stage[0], stage[2], ns(stage[1])),
    }
    now: Facts = {"state": State(state), "step_age_ns": ns(since_step), "made": steps, "stages": totals}
    return Process(**{"rank": rank, "world_size": of or None, **fields, **now, **others})


def trains(rank: int | None = 0, of: int = 1, **facts: Any) -> Facts:
    """Return a process that makes a step each 0.12 s, of which 5 % wait for data."""
    usual = Facts(step=300, since_step=0.05, steps=100, usual_step=0.12, activity=("step", 0.01))
    usual["time"] = {"startup": 8.0, "data": 0.6, "step": 11.4}
    usual["stages"] = {"data": 0.006, "backward": 0.114} | ({"sync": 0.0} if of > 1 else {})
    return {"rank": rank, "of": of, **usual, **facts}


def still(rank: int | None = 0, of: int = 1, seconds: float = 60.0, **facts: Any) -> Facts:
    return trains(rank, of, **{"since_step": seconds, "activity": ("step", seconds), **facts})


def over(job: Sequence[Facts], **facts: Any) -> list[Facts]:
    usual: Facts = {"state": "ended", "status": "completed", "since_step": None, "activity": ("", None), "waits": {}}
    return [{**each, **usual, **facts} for each in job]


def ranks(*numbers: int, of: int, **facts: Any) -> list[Facts]:
    return [trains(rank, of, **facts) for rank in numbers]


def at(rank: int, of: int, stage: str, *, waits: bool = False, seconds: float = 124.0, step: int = 300) -> Facts:
    """Return a rank of a job without a step for 125 seconds, in a stage for so many seconds."""
    return still(rank, of, 125.0, stage=(stage, seconds, waits), step=step)


KILLED: dict[str, Any] = {"state": "dead", "death": "killed by SIGKILL"}
LEFT: dict[str, Any] = {"state": "ended", "death": "ended with exit code 0 without a shutdown", "seen": 8.0}
FOUR = ranks(0, 1, 2, 3, of=4)
IN_ALL_REDUCE = {rank: still(rank, 4, 125.0, waits={"all_reduce": 124.0 + rank / 10}) for rank in range(4)}
LATE = {"data": 0.040, "forward": 0.03, "backward": 0.06, "optimizer": 0.01, "other": 0.0, "sync": 0.0}
OTHERS = {**LATE, "data": 0.010, "sync": 0.030}
RANK_2_IS_LATE = [trains(rank, 4, steps=400, stages=LATE if rank == 2 else OTHERS) for rank in range(4)]
TAKES_LONGER = "late rank: rank 2 takes 30.0 ms longer than the others in data"
FOR = "for 2 min 4 s"
END = "; look at the end of the output"
NO_STEPS = "no steps: ranks 0 and 1 made none for 2 min 5 s (usually one in 120 ms)"
FOUND_HERE = " (4 of 8 ranks found here, the others elsewhere or ended)"
NO_OVERHEAD = "unknown: 2 ranks, 8.33 steps/s, no overhead found"
COMPILING = "% of the time goes into compilation"
SET_STEP = "call monitel.set_step(), or monitel.torch.instrument()"

#: Name of the case: job, and of its verdict text, rank (None if left out), stage, seconds and share (not looked at if
#: left out).
CASES: dict[str, tuple[list[Facts], tuple[Any, ...]]] = {
    # dead, failed
    "a dead rank comes before those that wait for it": (
        [IN_ALL_REDUCE[0], IN_ALL_REDUCE[1], trains(2, 4, **KILLED, seen=7.0, step=1300), IN_ALL_REDUCE[3]],
        ("dead: rank 2 killed by SIGKILL at step 1,300; ranks 0, 1 and 3 wait in all_reduce", 2),
    ),
    "ranks that died alike are named together": (
        [trains(rank, 8, **KILLED, seen=9.0 - rank) for rank in range(4)],
        ("dead: ranks 0-3 killed by SIGKILL at step 300, rank 3 first (4 of 8 ranks found here)", 3),
    ),
    "without times no death is the first one": (
        [trains(rank, 2, **KILLED) for rank in range(2)],
        ("dead: ranks 0 and 1 killed by SIGKILL at step 300",),
    ),
    "a death without a cause": (
        [trains(0, state="dead", step=None, steps=0)],
        ("dead: rank 0 died of an unknown cause before the first step", 0),
    ),
    "steps that the program has not numbered": (
        [trains(None, state="dead", step=None)],
        ("dead: process 100 died of an unknown cause after 100 steps",),
    ),
    "a death comes before the failures that it causes": (
        [trains(0, 2, state="ended", status="failed", seen=5.0), trains(1, 2, **KILLED, seen=5.0)],
        ("dead: rank 1 killed by SIGKILL at step 300; 1 more ended after it", 1),
    ),
    "an interrupted job has not failed": (
        over(FOUR, status="interrupted", since_step=1.0),
        ("healthy: 4 ranks, 8.33 steps/s, 5 % waiting for data; interrupted",),
    ),
    "os._exit(0) of the last process is not a fault": (
        [trains(0, 2, state="ended", status="completed", seen=9.0), trains(1, 2, **LEFT)],
        ("healthy: 2 ranks, 8.33 steps/s, 5 % waiting for data",),
    ),
    # ended
    "unknown ends of all processes": (
        ranks(0, 1, of=2, state="ended", seen=9.0, silent=12.0),
        (f"ended: ranks 0 and 1 ended for an unknown reason at step 300, 12 s ago{END}",),
    ),
    "a process with the steps of a completed one has completed": (
        [trains(0, 2, state="ended", status="completed"), trains(1, 2, state="ended", seen=9.0, silent=12.0)],
        ("healthy: 2 ranks, 8.33 steps/s, 5 % waiting for data",),
    ),
    "a process with fewer steps than a completed one has not": (
        [trains(0, 2, state="ended", status="completed"), trains(1, 2, state="ended", seen=9.0, silent=3.0, step=299)],
        (f"ended: rank 1 ended for an unknown reason at step 299, 3 s ago{END}", 1),
    ),
    "an unknown end beside a failure names nobody": (
        [trains(0, 2, state="ended", status="failed", seen=9.0), trains(1, 2, state="ended", seen=8.0, silent=12.0)],
        ("failed: rank 0 failed at step 300; 1 more ended",),
    ),
    "os._exit(0) while others run": (
        [trains(0, 2), trains(1, 2, **LEFT, silent=12.0)],
        ("ended: rank 1 ended with exit code 0 without a shutdown at step 300, 12 s ago; rank 0 runs on", 1),
    ),
    # silent
    "a stopped process": (
        [*(still(rank, 4, 40.0) for rank in (0, 1, 3)), still(2, 4, 40.0, state="silent", silent=39.0)],
        ("silent: rank 2 has run no Python code for 39 s; ranks 0, 1 and 3 make no steps", 2, "", 39.0),
    ),
    # stuck, paused, no-steps: a rule of the page each
    "rule 1: the rank outside of the wait of the others, which has not waited longest": (
        [IN_ALL_REDUCE[0], still(1, 4, 124.5, activity=("data", 124.0)), IN_ALL_REDUCE[2], IN_ALL_REDUCE[3]],
        (f"stuck: rank 1 has been in data {FOR}; ranks 0, 2 and 3 wait for it in all_reduce", 1, "all_reduce", 124.5),
    ),
    "rule 1: two of five ranks": (
        [still(rank, 5, waits={} if rank in {1, 3} else {"all_reduce": 59.0}) for rank in range(5)],
        ("stuck: ranks 1 and 3 are not in this wait; ranks 0, 2 and 4 wait for them in all_reduce",),
    ),
    "rule 2: one of two ranks does not wait in its stage": (
        [at(0, 2, "backward", waits=True), at(1, 2, "forward")],
        ("stuck: rank 1 has been in forward for 2 min 4 s; rank 0 waits for it in backward", 1, "forward", 125.0),
    ),
    "rule 2: the stage other may be an evaluation": (
        [at(0, 4, "other"), *(at(rank, 4, "backward", waits=True) for rank in (1, 2, 3))],
        ("no steps: rank 0 has been in other for 2 min 4 s; ranks 1-3 wait for it in backward", 0, "other"),
    ),
    "rule 7: the rank behind, for nobody waits for one with more steps": (
        [at(0, 2, "backward", waits=True), at(1, 2, "forward", step=301)],
        ("no steps: none for 2 min 5 s; rank 0 is behind the others, at step 300, in backward", 0),
    ),
    "rule 3: a rank that ends while the others wait": (
        [still(rank, 4, activity=("shutdown" if rank == 3 else "step", 60.0)) for rank in range(4)],
        ("stuck: rank 3 has been in shutdown for 1 min; ranks 0-2 wait for it", 3),
    ),
    "rule 4: all ranks found here wait": (
        [still(rank, 8, 61.0, waits={"all_reduce": 60.0}) for rank in range(4)],
        (f"stuck: ranks 0-3 have waited in all_reduce for 1 min{FOUND_HERE}", None, "all_reduce"),
    ),
    "rule 4: all ranks wait for others in a stage": (
        [at(0, 2, "backward", waits=True), at(1, 2, "backward", waits=True)],
        ("stuck: ranks 0 and 1 have waited for other ranks in backward for 2 min 4 s", None, "backward"),
    ),
    "rule 5: one of four ranks is in a wait": (
        [still(rank, 4, waits={"share": 59.0} if rank == 3 else {}) for rank in range(4)],
        ("stuck: rank 3 has waited in share for 59 s; ranks 0-2 wait for it", 3, "share"),
    ),
    "rule 6: three ranks are listed": (
        [still(rank, 5, waits={f"w{rank}": 50.0}) for rank in range(5)],
        (f"stuck: {', '.join(f'rank {rank} has waited in w{rank} for 50 s' for rank in range(3))}, 2 more",),
    ),
    "rule 8: nothing shows anything": (
        [still(rank, 4, 125.0) for rank in range(4)],
        ("no steps: ranks 0-3 made none for 2 min 5 s (usually one in 120 ms); see monitel autopsy", None, "", 125.0),
    ),
    "a wait that is older than the last step is that of another thread": (
        [still(waits={"queue": 61.1})],
        ("no steps: rank 0 made none for 1 min (usually one in 120 ms); see monitel autopsy", 0),
    ),
    "a wait shorter than half of the standstill does not count": (
        [still(waits={"share": 29.9})],
        ("no steps: rank 0 made none for 1 min (usually one in 120 ms); see monitel autopsy", 0),
    ),
    "a wait for data between two batches is not stuck": (
        [still(activity=("data", 29.9))],
        ("no steps: rank 0 made none for 1 min (usually one in 120 ms); see monitel autopsy", 0),
    ),
    "a rank alone in an evaluation": (
        [still(activity=("evaluation", 44.0))],
        ("paused: rank 0 has been in evaluation for 44 s", 0, "evaluation"),
    ),
    "a wait over its threshold": (
        [still(activity=("stuck", 9.0), seconds=20.0)],
        ("stuck: rank 0 has been in a wait over its threshold for 9 s", 0),
    ),
    "a loss that is not finite": (
        [{**each, "value_name": "train.loss", "value": math.nan} for each in RANK_2_IS_LATE],
        ("diverged: train.loss is nan; 4 ranks, 8.33 steps/s",),
    ),
    "another number that is not finite": (
        [trains(value_name="grad_norm", value=math.inf)],
        ("healthy: 8.33 steps/s, 5 % waiting for data",),
    ),
    "others go on": (
        [still(0, 3, waits={"share": 59.0}), trains(1, 3), trains(2, 3)],
        ("stuck: rank 0 has waited in share for 59 s; ranks 1 and 2 go on", 0),
    ),
    "an interrupted run that hung": (
        over(ranks(0, 1, of=2), status="interrupted", since_step=125.0),
        ("no steps: ranks 0 and 1 made none for 2 min 5 s (usually one in 120 ms), at the end",),
    ),
    "a run that was stuck for much of its time": (
        [*over([trains(0, 2)]), *over([trains(1, 2, time={"startup": 8.0, "step": 60.0, "stuck": 15.0})])],
        ("stuck: rank 1 was in waits over their threshold for 15 s (20 %)", 1, "stuck", 15.0, 0.2),
    ),
    "ranks that reach their limit later are compared": (
        [
            still(0, 3, 31.0, usual_step=4.0, activity=("data", 31.0)),
            *(still(rank, 3, 31.0, waits={"all_reduce": 30.0}) for rank in (1, 2)),
        ],
        ("stuck: rank 0 has been in data for 31 s; ranks 1 and 2 wait for it in all_reduce", 0),
    ),
    "a rank whose last step is half as long ago does not go on": (
        [still(0, 2, waits={"share": 59.0}), still(1, 2, 31.0, usual_step=50.0)],
        ("stuck: rank 0 has waited in share for 59 s, rank 1 is in no known wait",),
    ),
    "nobody waits for a rank about which nothing is known": (
        [at(0, 2, "backward", waits=True), still(1, 2, 125.0)],
        (NO_STEPS + "; rank 0 is in backward; see monitel autopsy",),
    ),
    "a young stage does not count": (
        [at(0, 2, "backward", waits=True, seconds=40.0), at(1, 2, "forward")],
        (NO_STEPS + "; rank 1 is in forward; see monitel autopsy",),
    ),
    "the latest of several late ranks": (
        [
            trains(rank, 6, steps=400, stages={**OTHERS, **more})
            for rank, more in enumerate([{}, {}, LATE, {}, {"forward": 0.055, "sync": 0.005}, {}])
        ],
        (f"{TAKES_LONGER} (21 % of each step; 1 more)", 2),
    ),
    # starting
    "ranks wait in init for one that starts": (
        [Facts(rank=rank, of=4, activity=("startup" if rank == 3 else "init", 12.0 + rank)) for rank in range(4)],
        ("starting: ranks 0-2 have been in init for 14 s, rank 3 has been starting for 15 s", None, "init"),
    ),
    "the time of a start does not begin again": (
        [Facts(activity=("startup", 0.7), time={"startup": 12.0, "init": 19.0})],
        ("starting: rank 0 has been starting for 31 s",),
    ),
    # losses
    "compilations of the same code": (
        [trains(rank, 2, time={"compile": 41.0, "step": 59.0}, recompilations=(12 * rank, 50.0)) for rank in (0, 1)],
        (f"compile storm: 41 {COMPILING} on rank 1, 12 recompilations", 1, "compile", None, 0.41),
    ),
    "a late rank": (
        RANK_2_IS_LATE,
        (f"{TAKES_LONGER} (21 % of each step)", 2, "data", 0.030, 0.030 / 0.140),
    ),
    "the picture of docs/explanation/late-ranks.md": (
        [
            trains(rank, 4, steps=400, stages=dict(zip(LATE, (each / 1000 for each in milliseconds), strict=True)))
            for rank, milliseconds in enumerate(
                [(8, 30, 60, 5, 2, 30), (9, 31, 59, 5, 2, 29), (38, 30, 60, 5, 2, 0), (8, 29, 61, 5, 2, 30)]
            )
        ],
        (f"{TAKES_LONGER.replace('30.0', '29.5')} (22 % of each step)", 2, "data", 0.0295, 29.5 / 135),
    ),
    "a rank with longer cycles makes other steps": (
        [*RANK_2_IS_LATE[:2], trains(2, 4, steps=400, stages={**LATE, "forward": 0.1}), RANK_2_IS_LATE[3]],
        ("healthy: 4 ranks, 8.33 steps/s, 7 % waiting for data",),
    ),
    "ranks of different groups are not compared": (
        [
            *(trains(rank, 4, group="first", stages={"data": 0.01, "backward": 0.05, "sync": 0.05}) for rank in (0, 1)),
            *(trains(rank, 4, group="last", stages={"data": 0.01, "backward": 0.10, "sync": 0.0}) for rank in (2, 3)),
        ],
        ("healthy: 4 ranks, 8.33 steps/s, 9 % waiting for data",),
    ),
    "a loader that is too slow": (
        [trains(rank, 2, stages={"data": 0.3 + rank / 10, "backward": 0.7 - rank / 10}) for rank in (0, 1)],
        ("input-bound: 30 to 40 % of each step goes into waiting for data, on all 2 ranks", None, "data", None, 0.3),
    ),
    "data of the ledger, in a loop without stages": (
        [trains(stages={}, time={"startup": 90.0, "data": 3.0, "step": 9.0, "evaluation": 50.0})],
        ("input-bound: 25 % of each step goes into waiting for data",),
    ),
    "compilations come before the rank that they make late": (
        [
            {**each, "recompilations": (9 if each["rank"] == 2 else 0, 20.0), "time": {"compile": 20.0, "step": 11.0}}
            for each in RANK_2_IS_LATE
        ],
        (f"compile storm: 65 {COMPILING} on rank 2, 9 recompilations", 2),
    ),
    "a single wait for data is not the usual step": (
        [trains(stages={}, time={"data": 15.0, "step": 30.0}, longest_step=14.0)],
        ("healthy: 8.33 steps/s, 3 % waiting for data",),
    ),
    "checkpoints": (
        [trains(0, 2, time={"checkpoint.save": 200.0, "step": 600.0}), trains(1, 2, time={"step": 800.0})],
        ("checkpoint-bound: 25 % of the time of rank 0 goes into saving checkpoints", 0, "checkpoint.save", None, 0.25),
    ),
    # unknown
    "no step": ([Facts(activity=("other", 1.0))], (f"unknown: no step was set; {SET_STEP}",)),
    "no ledger and no stages": (
        [trains(time={}, stages={})],
        (f"unknown: 8.33 steps/s, without a ledger or stages; {SET_STEP}",),
    ),
    "several ranks without stages": (
        [trains(rank, 2, stages={}) for rank in range(2)],
        (f"{NO_OVERHEAD}, but late ranks are not known without stages; call monitel.torch.instrument()",),
    ),
    "an interrupted run without measured steps": (
        over(ranks(0, 1, of=2), status="interrupted"),
        (f"{NO_OVERHEAD}; interrupted, the time since the last step is not known",),
    ),
    # healthy
    "a healthy job": (FOUR, ("healthy: 4 ranks, 8.33 steps/s, 5 % waiting for data", None, "", None, None)),
    "the rate is that of now": ([trains(rate=3.17)], ("healthy: 3.17 steps/s, 5 % waiting for data",)),
    "a step that is overdue": (
        [trains(0, 2), trains(1, 2, since_step=26.0)],
        ("healthy: 2 ranks, no step of rank 1 for 26 s, 5 % waiting for data",),
    ),
}


def kind_of(text: str) -> str:
    return text.partition(":")[0].replace(" ", "-")


@pytest.mark.parametrize("kind", dict.fromkeys(kind_of(text) for _, (text, *_) in CASES.values()))
def test_documented_rules_give_the_verdict(kind: str) -> None:
    """Kind, text and rank, and where a case has them stage, seconds and share; for any order of the processes."""
    wrong = {}
    for name, (job, (text, *rest)) in CASES.items():
        expected = [kind_of(text), text, *(rest or [None])]
        found = verdict_of(job)
        right = expected == pytest.approx([*found[: len(expected)]]) and found == verdict_of([*reversed(job)])
        if expected[0] == kind and not right:
            wrong[name] = (expected, found)
    assert {} == wrong


def cycle(rank: int, late: float) -> dict[str, float]:
    """Return the stages of a rank of which rank 0 is late by a share of the cycle of one second."""
    return {"data": 0.1 + (0.0 if rank else late), "backward": 0.9 - late, "sync": late if rank else 0.0}


def storm(number: int, share: float) -> list[Facts]:
    return [trains(time={"startup": 900.0, "compile": share, "step": 1 - share}, recompilations=(number, share))]


def saving(loop: float, seconds: float) -> list[Facts]:
    return [trains(time={"startup": 900.0, "checkpoint.save": seconds, "step": loop - seconds})]


def data(share: float) -> list[Facts]:
    return [trains(rank, 2, stages={"data": share, "backward": 1 - share, "sync": 0.0}) for rank in range(2)]


def late(share: float, steps: int) -> list[Facts]:
    return [trains(rank, 4, steps=steps, stages=cycle(rank, share)) for rank in range(4)]


def pause(stage: str, longest: float) -> list[Facts]:
    """Return four ranks of which rank 2 is late by 30 ms, of which the longest cycles explain a part."""
    return [{**each, "longest": {stage: longest}} for each in RANK_2_IS_LATE]


#: Name of the limit: the job at the limit and its kind, and the job beside the limit, which is healthy.
LIMITS: dict[str, tuple[list[Facts], str, list[Facts]]] = {
    "30 s without a step": ([still(seconds=30.1)], "no-steps", [still(seconds=30.0)]),
    "ten usual steps": ([still(seconds=601, usual_step=60.0)], "no-steps", [still(seconds=599, usual_step=60.0)]),
    "five minutes, if no step is usual": (
        [still(seconds=301, usual_step=None, time={})],
        "no-steps",
        [still(seconds=299, usual_step=None, time={})],
    ),
    "ten seconds of silence": (
        [trains(0, 2), trains(1, 2, state="silent", silent=10.0)],
        "silent",
        [trains(0, 2), trains(1, 2, state="silent", silent=9.9)],
    ),
    "twenty steps": ([trains(steps=19)], "unknown", [trains(steps=20)]),
    "three recompilations": (storm(3, 0.2), "compile-storm", storm(2, 0.2)),
    "a fifth of the time in checkpoints": (saving(600.0, 120.0), "checkpoint-bound", saving(600.0, 119.0)),
    "a fifth of the time in recompilations": (
        [trains(time={"compile": 0.4, "step": 0.6}, recompilations=(3, 0.2))],
        "compile-storm",
        [trains(time={"compile": 0.4, "step": 0.6}, recompilations=(3, 0.19))],
    ),
    "the steps of the rank that has made the fewest": (
        late(0.15, 100),
        "late-rank",
        [{**late(0.15, 100)[0], "steps": 25}, *late(0.15, 100)[1:]],
    ),
    "ten minutes for checkpoints": (saving(600.0, 150.0), "checkpoint-bound", saving(599.0, 150.0)),
    "a fifth of each step for data": (data(0.2), "input-bound", data(0.19)),
    "a tenth of the time stuck, at the end": (
        over([trains(time={"startup": 900.0, "step": 90.0, "stuck": 10.0})]),
        "stuck",
        over([trains(time={"startup": 900.0, "step": 90.1, "stuck": 9.9})]),
    ),
    "5 % of a cycle, from 400 steps on": (late(0.051, 400), "late-rank", late(0.049, 10_000)),
    "10 % of a cycle with 100 steps": (late(0.101, 100), "late-rank", late(0.099, 100)),
    "22 % of a cycle with 20 steps": (late(0.23, 20), "late-rank", late(0.22, 20)),
    "twice the longest cycles": (pause("data", 0.0149), "late-rank", pause("data", 0.0151)),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limit_of_a_rule(limit: str) -> None:
    """A job at the limit has the verdict, and the job beside it is healthy."""
    at_limit, kind, beside = LIMITS[limit]
    assert (kind, "healthy") == (verdict_of(at_limit).kind, verdict_of(beside).kind)


#: Seconds of the stages of a step without noise.
WORK = {"optimizer": 0.010, "other": 0.005, "data": 0.010, "forward": 0.030, "backward": 0.060}


def synchronous(
    random: Random, number: int, steps: int, *, noise: float, pauses: float = 0.0, late: Mapping[Any, float]
) -> list[Facts]:
    """Return ranks that wait for the last one in each step; ``late`` has the delay of a rank and stage."""
    times: list[list[dict[str, float]]] = []
    for _ in range(steps):
        step = [
            {
                stage: seconds * random.lognormvariate(0, noise) * (10 if random.random() < pauses else 1)
                + late.get((rank, stage), 0.0)
                for stage, seconds in WORK.items()
            }
            for rank in range(number)
        ]
        last = max(sum(each.values()) for each in step)
        times.append([{**each, "sync": last - sum(each.values())} for each in step] if number > 1 else step)
    return [
        trains(
            rank,
            number,
            steps=steps,
            stages={stage: fmean(step[rank][stage] for step in times) for stage in times[0][rank]},
        )
        for rank in range(number)
    ]


def test_noisy_jobs_are_healthy() -> None:
    """Two hundred jobs of 1 to 32 ranks, with noise of up to 30 % and rare pauses of ten times a stage."""
    wrong = []
    for seed in range(200):
        random = Random(seed)
        number, steps = random.choice((1, 2, 2, 3, 4, 8, 32)), random.choice((20, 30, 50, 100))
        noise, pauses = random.choice((0.02, 0.05, 0.1, 0.2, 0.3)), random.choice((0.0, 0.0, 0.0003))
        found = verdict_of(synchronous(random, number, steps, noise=noise, pauses=pauses, late={}))
        if found.kind != "healthy":
            wrong.append((seed, found))
    assert [] == wrong


@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from([*WORK]), st.floats(0.03, 1.0))
def test_delay_of_30_ms_is_always_found(seed: int, number: int, stage: str, delay: float) -> None:
    """Rank, stage and seconds are those of the delay, in spite of noise of a tenth."""
    random = Random(seed)
    rank = random.randrange(number)
    found = verdict_of(synchronous(random, number, 60, noise=0.1, late={(rank, stage): delay}))
    assert ("late-rank", rank, stage) == (found.kind, found.rank, found.stage)
    assert found.seconds == pytest.approx(delay, abs=0.008)


@given(
    st.integers(0, 10**6),
    st.integers(2, 9),
    st.sampled_from(["step", "data", "evaluation", "checkpoint.save", "shutdown"]),
    st.sampled_from(["", "share"]),
    st.booleans(),
)
def test_no_rank_but_the_hanging_one_is_named(
    seed: int, number: int, activity: str, key: str, collectives: bool
) -> None:
    """The rank is named where a wait or an activity shows it; threads that prefetch wait on all ranks."""
    random = Random(seed)
    culprit, since = random.randrange(number), random.uniform(31.0, 5000.0)
    job = []
    for rank in range(number):
        waits = {"queue.get": since + 900} if random.random() < 0.5 else {}
        if rank == culprit:
            waits |= {key: since - 0.1} if key else {}
        elif collectives:
            waits |= {"all_reduce": since - random.uniform(0.0, 0.3)}
        job.append(still(rank, number, since, waits=waits, activity=(activity if rank == culprit else "step", since)))
    random.shuffle(job)
    visible = activity != "step" or (number > 2 and (collectives or key))
    assert (culprit if visible else None) == verdict_of(job).rank
