"""The board "Who holds the job up", compared with ranks of known times."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import pytest
from tests.integration.conftest import ROOT
from tests.integration.stack.boards import Board, board
from tests.integration.stack.filling import Job, Store, store
from tests.support.checks import wait_until

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


RUN, GROUP, HOST = "training_run_id", "training_group", "host_name"
RANK, STAGE = "training_rank", "training_stage"
SUSPECT = (RUN, GROUP, RANK, HOST, STAGE)


@pytest.fixture(scope="module")
def opened(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """The board, opened while four runs train."""
    folder = tmp_path_factory.mktemp("ranks")
    with store(backends, folder) as prometheus, ExitStack() as stack:
        for run in RUNS:
            stack.enter_context(training(prometheus, folder / run, run))
        wait_until(lambda: complete(prometheus), "the rules have not recorded all ranks")
        yield board("ranks", prometheus, "vision")


def complete(prometheus: Store) -> bool:
    """Return True if the rules had recorded all ranks a second ago: a minute of a real job."""
    recorded = last(prometheus.query("training:cycle:seconds offset 1s"), RUN, GROUP)
    return recorded == pytest.approx(cycles()) and len(awaited()) == len(
        prometheus.query("training:rank_late:seconds offset 1s")
    )


def last(series: list[dict[str, Any]], *labels: str) -> Values:
    """Return the last values of all series that have one at the last time, by these labels, which distinguish them."""
    points = [(each["metric"], *(each.get("values") or [each["value"]])[-1]) for each in series]
    end = max((at for _, at, _ in points), default=0)
    found = {
        tuple(metric.get(label, "") for label in labels): float(value) for metric, at, value in points if at == end
    }
    assert len(found) == sum(at == end for _, at, _ in points)
    return found


def shown(opened: Board, title: str, *labels: str, **choices: str) -> list[Values]:
    """Return the last values of each query of a panel, by these labels."""
    variables = {**opened.variables(), **choices}
    targets = opened.targets(title)
    assert targets, title
    return [last(opened._ask(target, variables), *labels) for target in targets]


def close(*values: Values) -> list[Any]:
    """Return values to compare with; rules and tests add in different orders."""
    return [pytest.approx(each, rel=1e-9, abs=1e-12) for each in values]


def test_first_suspect_is_named(opened: Board) -> None:
    """For each run with a late rank its first suspect, and none for a healthy run."""
    (first,) = shown(opened, "First suspect", *SUSPECT)
    late = {
        run: max((item for item in suspects().items() if item[0][0] == run), key=lambda item: item[1])
        for run in ("late", "pipeline")
    }
    assert [first] == close(dict(late.values()))
    assert {("late", "", "2", "n1", "data"), ("pipeline", "second", "3", "n1", "forward")} == first.keys()
    assert first["late", "", "2", "n1", "data"] == pytest.approx(0.030, abs=0.0005)
    assert first["pipeline", "second", "3", "n1", "forward"] == pytest.approx(0.020, abs=0.0015)


def test_tiles_show_cycle_waiting_and_ranks(opened: Board) -> None:
    """Each run has its longest cycle, the share of waiting, and the number of ranks that can be compared."""
    assert shown(opened, "Cycle", RUN) == close(over(max, cycles(), 1))
    assert shown(opened, "Share of waiting", RUN) == close(over(max, over(fmean, waits()), 1))
    assert shown(opened, "Ranks compared", RUN) == close(over(len, waits(), 1))


def test_exposed_times_add_up_to_the_cycle(opened: Board) -> None:
    """Bars have the longest stage of all first; shares over time add up to 1 in each group."""
    truth = {(*of, stage): seconds for of, ranks in TIMES.items() for stage, seconds in lateness.exposed(ranks).items()}
    (bars,) = shown(opened, "Exposed time per stage", RUN, GROUP, STAGE)
    assert [bars] == close(truth)
    assert list(bars.values()) == sorted(bars.values(), reverse=True)
    for of, cycle in cycles().items():
        assert sum(seconds for group, seconds in bars.items() if group[:2] == of) == pytest.approx(cycle)
    assert shown(opened, "Cycle over time", RUN, GROUP) == close(cycles())
    assert shown(opened, "Exposed time over time", RUN, GROUP, STAGE) == close(
        {group: seconds / cycles()[group[0], group[1]] for group, seconds in truth.items()}
    )


def test_suspects_are_listed(opened: Board) -> None:
    """Each with its lateness, the time that the others wait for it, and its share of the cycle; and over time."""
    late = suspects()
    assert {("2", "data"), ("3", "backward")} == {each[2::2] for each in late if each[0] == "late"}
    assert shown(opened, "Suspects now", *SUSPECT) == close(
        late,
        {each: awaited()[each[:3]] for each in late},
        {each: seconds / cycles()[each[0], each[1]] for each, seconds in late.items()},
    )
    assert shown(opened, "Suspects over time", *SUSPECT) == close(late)


def test_one_group_is_chosen(opened: Board) -> None:
    """All panels but those of a rank and of silent processes show the chosen group only."""
    variables = {**opened.variables(), "group": "second", "stage": "forward"}
    checked = 0
    for panel in opened.content["panels"]:
        for target in panel.get("targets", []):
            if "training:" in target["expr"] and "$rank" not in target["expr"]:
                found = [each["metric"] for each in opened._ask(target, variables)]
                assert {"pipeline"} == {each[RUN] for each in found}, panel["title"]
                assert {each.get(GROUP, "second") for each in found} == {"second"}
                checked += 1
    assert checked >= 17
    (first,) = shown(opened, "First suspect", RUN, RANK, group="first")
    assert not first


def test_rank_is_beside_the_median(opened: Board) -> None:
    """Each stage of a rank with the median of its group, or with the other rank of two."""
    for rank, run, group in ((2, "late", ""), (3, "pipeline", "second"), (0, "healthy", "")):
        ranks = TIMES[run, group]
        found = shown(opened, "Rank $rank beside the median", RANK, STAGE, rank=str(rank), run=run)
        others = [each for each in ranks if each != rank] if len(ranks) == 2 else list(ranks)
        middle = {stage: median(ranks[each][stage] for each in others) for stage in ranks[rank]}
        own = ranks[rank]
        truth: list[Mapping[str, float]] = [own, middle, {stage: own[stage] - middle[stage] for stage in own}]
        assert found == close(*({(str(rank), stage): each[stage] for stage in own} for each in truth))


def test_queries_of_the_guide(opened: Board) -> None:
    """Each query of docs/how-to/slow-rank.md gives the true numbers."""
    page = (ROOT / "docs" / "how-to" / "slow-rank.md").read_text()
    queries = dict(re.findall(r"^\| ([^|]+\?) \| `([^`]+)` \|$", page, re.MULTILINE))

    def answer(question: str, *labels: str) -> Values:
        return last(opened.store.query(queries.pop(question)), *labels)

    late = suspects()
    found = answer("Which ranks are late now?", *SUSPECT)
    assert [found] == close(late)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert [answer("How much of the cycle is that?", *SUSPECT)] == close(
        {each: seconds / cycles()[each[0], each[1]] for each, seconds in late.items()}
    )
    assert [answer("Where does the time of a step go?", RUN, GROUP, STAGE)] == close(
        {(*of, stage): seconds for of, ranks in TIMES.items() for stage, seconds in lateness.exposed(ranks).items()}
    )
    three = dict(sorted(awaited().items(), key=lambda item: item[1], reverse=True)[:3])
    assert [answer("Which ranks do the others wait for?", RUN, GROUP, RANK)] == close(three)
    stages = {(*each, stage): seconds for stage in WORK for each, seconds in in_stage(stage).items()}
    assert [answer("What does rank 2 do, beside the others?", RUN, STAGE)] == close(
        {(run, stage): seconds for (run, _, rank, stage), seconds in stages.items() if rank == "2"}
    )
    of_hosts = {(HOSTS[run, rank], stage, run, rank): seconds for (run, _, rank, stage), seconds in stages.items()}
    assert [answer("Is it a host?", HOST, STAGE)] == close(over(fmean, of_hosts))
    assert [answer("What share of its time does each rank wait?", RUN, RANK)] == close(
        {(run, rank): share for (run, _, rank), share in waits().items()}
    )
    assert not queries
