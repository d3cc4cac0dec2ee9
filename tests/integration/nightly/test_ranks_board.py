"""The board "Who holds the job up", compared with ranks of known times."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from tests.integration.stack.boards import Board, board
from tests.integration.stack.filling import Store, store
from tests.support.checks import wait_until
from tests.support.paths import ROOT

from monitel.console import lateness

# Ten cycles per second until the end of stdin.
JOB = """\
import json, sys, threading
import monitel, monitel_otlp

group = {"training.group": sys.argv[2]} if sys.argv[2] else {}
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
where = {"service.namespace": "vision", "host.name": sys.argv[3]}
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


Values = Mapping[Any, float]  # by labels
Times = dict[int, dict[str, float]]
BASE = {"optimizer": 0.005, "other": 0.002, "data": 0.010, "forward": 0.030, "backward": 0.060}


def synchronous(ranks: int, delays: Mapping[tuple[int, str], float]) -> Times:
    """Return the stages of ranks of which some are delayed: each waits for the last one."""
    times = [
        {stage: seconds + delays.get((rank, stage), 0.0) for stage, seconds in BASE.items()} for rank in range(ranks)
    ]
    last = max(sum(of.values()) for of in times)
    return {rank: {**of, "sync": last - sum(of.values())} for rank, of in enumerate(times)}


#: Seconds of the stages of each rank, equal in every cycle, by run and group: the ranks that are compared.
TIMES: dict[tuple[str, str], Times] = {
    ("late", ""): synchronous(4, {(2, "data"): 0.030, (3, "backward"): 0.012}),
    ("pipeline", "first"): synchronous(3, {}),
    ("pipeline", "second"): {
        3 + rank: {stage: 2 * seconds for stage, seconds in stages.items()}
        for rank, stages in synchronous(2, {(0, "forward"): 0.010}).items()
    },
    ("healthy", ""): synchronous(2, {}),
    ("alone", ""): {0: BASE},
}
HOSTS = {(run, str(rank)): f"n{rank // 2}" for (run, _), ranks in TIMES.items() for rank in ranks}
COMPARED = {of: ranks for of, ranks in TIMES.items() if len(ranks) > 1}


def over(choose: Callable[[list[float]], float], of_ranks: Values, labels: int = 2) -> Values:
    values = defaultdict(list)
    for found, value in of_ranks.items():
        values[found[:labels]].append(value)
    return {found: choose(several) for found, several in values.items()}


RUN, GROUP, HOST = "training_run_id", "training_group", "host_name"
RANK, STAGE = "training_rank", "training_stage"
SUSPECT = (RUN, GROUP, RANK, HOST, STAGE)

SUSPECTS: Values = {
    (*of, str(rank), HOSTS[of[0], str(rank)], stage): seconds
    for of, ranks in TIMES.items()
    for seconds, rank, stage in lateness.suspects(ranks)
}
CYCLES: Values = {of: lateness.cycle(ranks) for of, ranks in TIMES.items()}
SHARES = {each: seconds / CYCLES[each[:2]] for each, seconds in SUSPECTS.items()}
EXPOSED = {(*of, stage): seconds for of, ranks in TIMES.items() for stage, seconds in lateness.exposed(ranks).items()}
#: How much longer the others wait than each rank of a group of several.
AWAITED: Values = {
    (*of, str(rank)): late for of, each in TIMES.items() for rank, late in lateness.rank_late(each).items()
}
#: The lateness of each rank of a group of several in each stage.
IN_STAGES = {
    (run, stage, str(rank)): late
    for (run, _), each in TIMES.items()
    for (rank, stage), late in lateness.stage_late(each).items()
}
WAITS: Values = {
    (*of, str(rank)): stages["sync"] / CYCLES[of] for of, ranks in COMPARED.items() for rank, stages in ranks.items()
}
FIRST = {("late", "", "2", "n1", "data"), ("pipeline", "second", "3", "n1", "forward")}

#: Labels and true values of each query of a panel, by its title.
PANELS: dict[str, tuple[Sequence[str], list[Values]]] = {
    "First suspect": (SUSPECT, [{each: SUSPECTS[each] for each in FIRST}]),
    "Cycle": ([RUN], [over(max, CYCLES, 1)]),
    "Share of waiting": ([RUN], [over(max, over(fmean, WAITS), 1)]),
    "Ranks compared": ([RUN], [over(len, WAITS, 1)]),
    "Exposed time per stage": ([RUN, GROUP, STAGE], [EXPOSED]),
    "Cycle over time": ([RUN, GROUP], [CYCLES]),
    "Exposed time over time": ([RUN, GROUP, STAGE], [{each: EXPOSED[each] / CYCLES[each[:2]] for each in EXPOSED}]),
    "Suspects now": (SUSPECT, [SUSPECTS, {each: AWAITED[each[:3]] for each in SUSPECTS}, SHARES]),
    "Suspects over time": (SUSPECT, [SUSPECTS]),
}
#: Labels and true values of the query for each question of docs/how-to/slow-rank.md.
QUESTIONS: dict[str, tuple[Sequence[str], Values]] = {
    "How much of the cycle is that?": (SUSPECT, SHARES),
    "Where does the time of a step go?": ([RUN, GROUP, STAGE], EXPOSED),
    "Which ranks do the others wait for?": (
        [RUN, GROUP, RANK],
        dict(sorted(AWAITED.items(), key=lambda item: item[1], reverse=True)[:3]),
    ),
    "What does rank 2 do, beside the others?": (
        [RUN, STAGE],
        {(run, stage): seconds for (run, stage, rank), seconds in IN_STAGES.items() if rank == "2"},
    ),
    "Is it a host?": (
        [HOST, STAGE],
        over(fmean, {(HOSTS[run, rank], stage, run, rank): late for (run, stage, rank), late in IN_STAGES.items()}),
    ),
    "What share of its time does each rank wait?": (
        [RUN, RANK],
        {(run, rank): share for (run, _, rank), share in WAITS.items()},
    ),
}


@pytest.fixture(scope="module")
def opened(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("ranks")
    with store(backends, folder) as prometheus, ExitStack() as stack:
        for run in dict.fromkeys(run for run, _ in TIMES):
            groups = [(group, ranks) for (name, group), ranks in TIMES.items() if name == run]
            arguments = {
                rank: [json.dumps(stages), group, HOSTS[run, str(rank)]]
                for group, ranks in groups
                for rank, stages in ranks.items()
            }
            stack.enter_context(prometheus.ranks(folder / run, run, JOB, arguments))
        wait_until(lambda: complete(prometheus), "the rules have not recorded all ranks")
        yield board("ranks", prometheus, "vision")


def complete(prometheus: Store) -> bool:
    """Return True if the rules had recorded all ranks a second ago: a minute of a real job."""
    recorded = last(prometheus.query("training:cycle:seconds offset 1s"), RUN, GROUP)
    return recorded == pytest.approx(CYCLES) and len(AWAITED) == len(
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
    return [last(series, *labels) for series in opened.shown(title, **choices)]


def close(*values: Values) -> list[Any]:
    """Return values to compare with; rules and tests add in different orders."""
    return [pytest.approx(each, rel=1e-9, abs=1e-12) for each in values]


@pytest.mark.parametrize("title", PANELS)
def test_panel_shows_the_true_values(opened: Board, title: str) -> None:
    """In each of its queries; bars have the longest stage of all first."""
    labels, truth = PANELS[title]
    found = shown(opened, title, *labels)
    assert found == close(*truth)
    if title == "Exposed time per stage":
        assert list(found[0].values()) == sorted(found[0].values(), reverse=True)


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
    assert QUESTIONS.keys() == queries.keys()
    for question, (labels, truth) in QUESTIONS.items():
        assert [last(opened.store.query(queries[question]), *labels)] == close(truth), question
