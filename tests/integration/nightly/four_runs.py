"""Four runs of known stage times, and what the rules must record of them."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.integration.stack.filling import Job, Store

from monitel.console import lateness

# Ten cycles per second until the end of stdin.
JOB = """\
import json, sys, threading
import monitel, monitel_otlp

group = {"training.group": sys.argv[2]} if sys.argv[2] else {}
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
where = {"service.namespace": "vision", "host.name": sys.argv[3], "k8s.pod.name": sys.argv[4]}
pipeline = monitel_otlp.configure(
    service_name="train", export_interval=0.25, spool_dir="spool", resource_attributes=where
)
stats = [
    (monitel.Stat(
        "training.stage.duration", {monitel.MEAN}, 1.0, unit="s", attributes={"training.stage": stage, **group}
    ), seconds)
    for stage, seconds in json.loads(sys.argv[1]).items()
]
while not over.wait(0.1):
    for stat, seconds in stats:
        stat.add(seconds)
pipeline.shutdown()
"""


@dataclass(frozen=True)
class KnownRank:
    rank: int  # its number in the run
    host: str  # the name of its host
    group: str  # the ranks that it is compared with; "" for all ranks of the run
    stages: Mapping[str, float]  # seconds per stage, equal in every cycle


Values = Mapping[Any, float]  # by labels
Times = dict[int, Mapping[str, float]]

WORK = {"optimizer": 0.010, "other": 0.005, "data": 0.012, "forward": 0.030, "backward": 0.045}
TIMES_THE_WORK = {"": 1, "first": 1, "second": 2}  # of each group


def synchronous(ranks: Mapping[int, tuple[str, str]], late: Mapping[tuple[int, str], float]) -> list[KnownRank]:
    """Return the ranks of a run in which all ranks wait for the last one in each step.

    Args:
        ranks: Host and group of each rank.
        late: Seconds in addition to the work, by rank and stage.
    """
    random = Random(0)
    work = {
        rank: {
            stage: TIMES_THE_WORK[group] * seconds * random.uniform(0.99, 1.01) + late.get((rank, stage), 0.0)
            for stage, seconds in WORK.items()
        }
        for rank, (_, group) in ranks.items()
    }
    last = max(sum(stages.values()) for stages in work.values())
    return [
        KnownRank(
            rank, *ranks[rank], {**stages, "sync": 0.004 * TIMES_THE_WORK[ranks[rank][1]] + last - sum(stages.values())}
        )
        for rank, stages in work.items()
    ]


RUNS = {
    "late": synchronous(
        {0: ("n0", ""), 1: ("n0", ""), 2: ("n1", ""), 3: ("n1", "")}, {(2, "data"): 0.030, (3, "backward"): 0.012}
    ),
    "pipeline": synchronous(
        {0: ("n0", "first"), 1: ("n0", "first"), 2: ("n0", "first"), 3: ("n1", "second"), 4: ("n1", "second")},
        {(3, "forward"): 0.020},
    ),
    "healthy": synchronous(dict.fromkeys(range(2), ("n0", "")), {}),
    "alone": [KnownRank(0, "n0", "", WORK)],
}


def training(store: Store, folder: Path, run: str) -> AbstractContextManager[Job]:
    """Run one process for each rank of a run, which sends its metrics to the store."""
    arguments = {each.rank: [json.dumps(each.stages), each.group, each.host, f"pod-{each.rank}"] for each in RUNS[run]}
    return store.ranks(folder, run, JOB, arguments)


HOSTS = {(run, str(each.rank)): each.host for run, ranks in RUNS.items() for each in ranks}


def times() -> dict[tuple[str, str], Times]:
    found: dict[tuple[str, str], Times] = defaultdict(dict)
    for run, ranks in RUNS.items():
        for each in ranks:
            found[run, each.group][each.rank] = each.stages
    return found


TIMES = times()


def suspects() -> Values:
    return {
        (*of, str(rank), HOSTS[of[0], str(rank)], stage): seconds
        for of, ranks in TIMES.items()
        for seconds, rank, stage in lateness.suspects(ranks)
    }


def cycles() -> Values:
    return {of: sum(lateness.exposed(ranks).values()) for of, ranks in TIMES.items()}


def awaited() -> Values:
    """Return how much longer the others wait than each rank of a group of several."""
    return {(*of, str(rank)): late for of, each in TIMES.items() for rank, late in lateness.rank_late(each).items()}


def in_stage(stage: str) -> Values:
    """Return the lateness in a stage of each rank of a group of several."""
    return {
        (*of, str(rank)): late
        for of, each in TIMES.items()
        for (rank, name), late in lateness.stage_late(each).items()
        if name == stage
    }


def waits() -> Values:
    """Return the share of waiting of each rank of a group of several."""
    return {
        (*of, str(rank)): stages["sync"] / cycles()[of]
        for of, ranks in TIMES.items()
        for rank, stages in ranks.items()
        if len(ranks) > 1
    }


def over(choose: Callable[[list[float]], float], of_ranks: Values, labels: int = 2) -> Values:
    values = defaultdict(list)
    for found, value in of_ranks.items():
        values[found[:labels]].append(value)
    return {found: choose(several) for found, several in values.items()}
