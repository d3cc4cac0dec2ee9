"""The board "Who holds the job up", compared with ranks of known times."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from tests.integration.conftest import ROOT, eventually
from tests.integration.nightly.four_runs import (
    HOSTS,
    RUNS,
    TIMES,
    WORK,
    awaited,
    cycles,
    in_stage,
    over,
    suspects,
    training,
    waits,
)
from tests.integration.stack.boards import Board, board
from tests.integration.stack.filling import Store, store

from monitel.console import lateness

Values = Mapping[Any, float]  # by labels

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
        eventually(lambda: complete(prometheus), "the rules have not recorded all ranks")
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
