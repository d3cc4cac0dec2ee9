"""Jobs in which the late rank is hard to find, or a rank only looks late, and the ranks that the rules name.

Simpler ones are in ``compose/tests``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.integration.conftest import COMPOSE
from tests.integration.rules.test_rules import promtool, run
from tests.integration.rules.test_stage_rules import HOST, text

Work = Callable[[int, int], Mapping[str, float]]  # of a rank and a minute: seconds of some stages

__all__ = ["promtool"]

MINUTES = 40
USUAL = {"optimizer": 0.010, "other": 0.005, "data": 0.010, "forward": 0.030, "backward": 0.060}


@dataclass(frozen=True)
class Job:
    """Ranks that wait for the last one in each step."""

    ranks: int = 4  # number of ranks
    work: Work = lambda _rank, _minute: {}  # seconds of the stages of a rank in a minute that are not :data:`USUAL`
    scale: float = 1.0  # factor of all stages
    noise: float = 0.01  # largest change of a stage in a window, as a share of the stage
    minutes: range = range(MINUTES)  # the minutes of which the job has windows
    # labels of all ranks
    labels: Mapping[str, str] = field(default_factory=lambda: {"training_run_id": "run-7", "training_attempt": "0"})
    # windows that never arrive, as pairs of rank and minute
    away: Callable[[int, int], bool] = lambda _rank, _minute: False
    # seconds of a stage of a rank in a minute for which no other rank waits in the same window
    extra: Work = lambda _rank, _minute: {}

    def series(self, name: str) -> list[dict[str, str]]:
        """Return the series of all ranks as promtool reads them. The name distinguishes the processes of jobs."""
        random = Random(name)
        values: dict[tuple[int, str], list[str]] = {}
        for minute in range(MINUTES):
            work = [
                {
                    stage: self.scale * seconds * random.uniform(1 - self.noise, 1 + self.noise)
                    for stage, seconds in {**USUAL, **self.work(rank, minute)}.items()
                }
                for rank in range(self.ranks)
            ]
            last = max(sum(each.values()) for each in work)
            for rank, stages in enumerate(work):
                sync = 0.002 + last - sum(stages.values())
                more = self.extra(rank, minute)
                for stage, seconds in {**stages, "sync": sync}.items():
                    there = minute in self.minutes and not self.away(rank, minute)
                    value = repr(seconds + more.get(stage, 0.0)) if there else "_"
                    values.setdefault((rank, stage), []).append(value)
        return [
            {
                "series": text(
                    HOST,
                    {
                        "service_name": "train",
                        **self.labels,
                        "training_rank": str(rank),
                        "instance": f"{name}-{rank}",
                        "training_stage": stage,
                    }.items(),
                ),
                "values": " ".join(each),
            }
            for (rank, stage), each in values.items()
        ]


def late(stage: str, seconds: float, ranks: Sequence[int] = (1,), minutes: range = range(MINUTES)) -> Work:
    return lambda rank, minute: {stage: USUAL[stage] + seconds} if rank in ranks and minute in minutes else {}


def mixed(*jobs: Job) -> list[dict[str, str]]:
    return [series for number, job in enumerate(jobs) for series in job.series("abc"[number])]


def asked(name: str, series: list[dict[str, str]], expected: Mapping[str, set[str]]) -> dict[str, Any]:
    """Return a test for promtool of all ranks and stages that were named at any time, by an expression for them."""
    by_rank = "count by (training_rank, training_stage)"
    return {
        "name": name,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": f"0 * {by_rank} (count_over_time({expression}[{MINUTES}m]))",
                "eval_time": f"{MINUTES - 1}m30s",
                "exp_samples": [
                    {
                        "labels": text("", zip(("training_rank", "training_stage"), each.split(), strict=True)),
                        "value": 0,
                    }
                    for each in names
                ],
            }
            for expression, names in expected.items()
        ],
    }


SUSPECTS, ALERTS = "training:suspect:seconds", 'ALERTS{alertname="TrainingRankLate", alertstate="firing"}'
NONE: set[str] = set()
UNNAMED = {"training_run_id": "none", "training_attempt": "0"}

SILENT = {
    "two jobs of one name, one of which takes twice as long": mixed(
        Job(labels=UNNAMED), Job(labels=UNNAMED, scale=2.0)
    ),
    "an evaluation every ten minutes, which is in the next window of one host": mixed(
        Job(extra=lambda rank, minute: {"other": 0.3} if minute % 10 == (5 if rank < 3 else 6) else {})
    ),
    "an evaluation on one host and a longer wait for the network on the others, in one window": mixed(
        Job(extra=lambda rank, minute: ({"sync": 0.3} if rank < 3 else {"other": 0.1}) if minute % 10 == 5 else {})
    ),
    "hosts that differ by 1 %": mixed(
        Job(8, work=lambda rank, _: {stage: seconds * (1 + 0.01 * (rank < 4)) for stage, seconds in USUAL.items()})
    ),
    "most ranks late": mixed(Job(3, work=late("data", 0.03, (1, 2)))),
}


#: By name: the series, and the suspects, for which there are alerts.
NAMED: dict[str, Any] = {
    "a job with a late rank, and a smaller and slower one of the same name": (
        mixed(Job(6, labels=UNNAMED, work=late("data", 0.03)), Job(3, labels=UNNAMED, scale=1.5)),
        {"1 data"},
    ),
    "the same, the smaller one faster but in other": (
        mixed(
            Job(6, labels=UNNAMED, scale=3.0, work=late("data", 0.03)),
            Job(3, labels=UNNAMED, work=late("other", 0.02, range(3))),
        ),
        {"1 data"},
    ),
    "a restart with half of the ranks, which are slower, as the same attempt": (
        mixed(Job(8, minutes=range(20), work=late("data", 0.03)), Job(4, scale=1.5, minutes=range(21, MINUTES))),
        {"1 data"},
    ),
    "one of eight is late by 6 % for a quarter of an hour": (
        mixed(Job(8, work=late("forward", 0.008, (5,), range(10, 25)))),
        {"5 forward"},
    ),
    "a late rank, and an outage of all ranks": (
        mixed(Job(work=late("data", 0.02), away=lambda _, minute: 15 <= minute < 22)),
        {"1 data"},
    ),
    "a late rank that loses windows": (
        mixed(Job(work=late("data", 0.02), away=lambda rank, minute: rank == 1 and minute % 3 > 0)),
        {"1 data"},
    ),
    "steps whose length changes from window to window, and a late rank": (
        mixed(
            Job(
                work=lambda rank, minute: {
                    "forward": USUAL["forward"] * (1 + minute % 4 / 4),
                    "data": 0.01 + 0.02 * (rank == 1),
                }
            )
        ),
        {"1 data"},
    ),
    "late ranks in data and in forward, of four": (
        mixed(Job(work=lambda rank, _: {**late("data", 0.03, (1,))(rank, 0), **late("forward", 0.03, (3,))(rank, 0)})),
        {"1 data", "3 forward"},
    ),
}


CASES = {
    name: asked(name, series, {SUSPECTS: names, ALERTS: names})
    for name, (series, names) in [*((name, (series, NONE)) for name, series in SILENT.items()), *NAMED.items()]
}


@pytest.mark.parametrize("name", CASES)
def test_rules_name_late_ranks_alone(promtool: str, tmp_path: Path, name: str) -> None:
    """Suspects and alerts are the late ranks in their stages, and no other ones, at any time."""
    file = tmp_path / "scenario.json"  # which is YAML
    tests = {"rule_files": [str(COMPOSE / "stages.yml")], "evaluation_interval": "30s", "tests": [CASES[name]]}
    file.write_text(json.dumps(tests))
    run(promtool, "test", "rules", file)
