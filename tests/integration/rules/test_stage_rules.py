"""The recorded series of stages, compared with those of random jobs with known times."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tests.integration.conftest import COMPOSE
from tests.integration.rules.test_rules import promtool, run

from monitel.console import lateness

#: The values of a metric by labels.
Series: TypeAlias = dict[frozenset[tuple[str, str]], float]

#: The labels within which ranks are compared.
GROUP = ("service_namespace", "service_name", "training_run_id", "training_attempt", "training_group")
STAGE, STAGE_LATE, RANK_LATE, EXPOSED, CYCLE, SUSPECT = RECORDED = (
    "training:stage:seconds",
    "training:stage_late:seconds",
    "training:rank_late:seconds",
    "training:stage_exposed:seconds",
    "training:cycle:seconds",
    "training:suspect:seconds",
)

_USUAL = {"optimizer": 0.010, "other": 0.005, "data": 0.010, "forward": 0.030, "backward": 0.060}


@dataclass(frozen=True)
class Process:
    labels: dict[str, str]  # labels of its series
    host: Mapping[str, float]  # seconds of each stage by the clock of the host
    # seconds of each stage by the clock of the device; empty without device times
    device: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False  # true if its last window is too old to be compared

    @property
    def group(self) -> tuple[str, ...]:
        return tuple(self.labels.get(name, "") for name in GROUP)


def drawn(seed: int) -> list[Process]:
    random = Random(seed)
    processes = []
    for number, run_id in enumerate(("run-7", "run-7", "run-7", "run-8", "", "run-9")):
        of_group = {
            "service_namespace": random.choice(("vision", "speech", "")),
            "service_name": f"train-{seed}",
            "training_run_id": run_id,
            "training_attempt": str(number),
            "training_group": random.choice(("", "", "decoder")),
        }
        processes += _group(random, of_group, random.choice((1, 2, 2, 3, 4, 5, 8, 9)))
    return processes


def _group(random: Random, of_group: Mapping[str, str], ranks: int) -> list[Process]:
    """Return the processes of one group, of which some are late, lack stages, have ended or share a rank."""
    late = {
        (random.randrange(ranks), random.choice(tuple(_USUAL))): random.choice((0.001, 0.003, 0.010, 0.030))
        for _ in range(random.randrange(3))
    }
    if random.random() < 0.2:  # late in one stage, and early in another
        late |= {(0, "data"): 0.008, (0, "forward"): -0.008}
    waits = ranks > 1 and random.random() < 0.8
    apart = random.choice((0.0, 0.0, 0.0, 0.02)) * waits  # by which the cycle of a late rank is longer than the others
    if apart:
        late |= {(0, "data"): 0.030}
    on_device = random.choice((0.0, 0.0, 1.0, 0.7))
    found = []
    for rank in range(ranks):
        labels = {
            **of_group,
            "training_rank": random.choice((str(rank), str(rank), "0", "")),
            "host_name": f"n{rank // 2}",
            "instance": f"{of_group['training_attempt']}-{rank}",
        }
        host, device = (_times(random, rank, late, waits=waits, apart=apart * (rank == 0)) for _ in range(2))
        found.append(
            Process(
                {name: value for name, value in labels.items() if value},
                {} if random.random() < 0.03 else host,
                device if random.random() < on_device else {},
                ended=random.random() < 0.1,
            )
        )
    return found


def _times(
    random: Random, rank: int, late: Mapping[tuple[int, str], float], *, waits: bool, apart: float
) -> dict[str, float]:
    """Return the stages of a rank. Sums, differences and halves of these numbers are exact."""
    times = {
        stage: usual * random.uniform(0.95, 1.05) + late.get((rank, stage), 0.0) for stage, usual in _USUAL.items()
    }
    if waits:
        times["sync"] = max(0.15 - sum(times.values()), 0.0)
    times["other"] += apart
    if random.random() < 0.1:
        del times[random.choice(tuple(times))]
    if times and random.random() < 0.05:
        times[random.choice(tuple(times))] = random.choice((float("nan"), float("inf"), -1.0))
    return {stage: round(seconds * 2**20) / 2**20 if -1 < seconds < 1 else seconds for stage, seconds in times.items()}


def recorded(processes: Iterable[Process]) -> dict[str, Series]:
    groups: dict[tuple[str, ...], list[Process]] = defaultdict(list)
    for process in processes:
        if not process.ended:
            groups[process.group].append(process)
    found: dict[str, Series] = {name: {} for name in RECORDED}
    for members in groups.values():
        for name, series in _of_group(members).items():
            found[name] |= series
    return found


def _of_group(members: list[Process]) -> dict[str, Series]:
    device = any(each.device for each in members) and all(each.device or not each.host for each in members)
    times = {
        number: {name: seconds for name, seconds in (each.device if device else each.host).items() if 0 <= seconds < 1}
        for number, each in enumerate(members)
    }
    times = {number: of for number, of in times.items() if of}
    of_all = members[0].labels

    def rank(number: int, stage: str | None = None) -> frozenset[tuple[str, str]]:
        return frozenset((members[number].labels | ({"training_stage": stage} if stage else {})).items())

    def group(stage: str | None = None) -> frozenset[tuple[str, str]]:
        own = {name: of_all[name] for name in GROUP if name in of_all}
        return frozenset((own | ({"training_stage": stage} if stage else {})).items())

    return {
        STAGE: {rank(number, stage): seconds for number, of in times.items() for stage, seconds in of.items()},
        STAGE_LATE: {rank(*key): seconds for key, seconds in lateness.stage_late(times).items()},
        RANK_LATE: {rank(number): seconds for number, seconds in lateness.rank_late(times).items()},
        EXPOSED: {group(stage): seconds for stage, seconds in lateness.exposed(times).items()},
        CYCLE: {group(): lateness.cycle(times)} if times else {},
        SUSPECT: {rank(number, stage): seconds for seconds, number, stage in lateness.suspects(times)},
    }


__all__ = ["promtool"]

HOST, DEVICE = ("training_stage_duration_mean_seconds", "training_stage_device_duration_mean_seconds")


def text(name: str, labels: Any) -> str:
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels)) + "}"


def case(seed: int) -> dict[str, Any]:
    """Return a test for promtool of one random job. Windows last a minute; of the last ones a third has arrived."""
    processes = drawn(seed)
    inputs = []
    for number, process in enumerate(processes):
        for metric, times in ((HOST, process.host), (DEVICE, process.device)):
            for stage, seconds in times.items():
                value = repr(seconds).replace("nan", "NaN").replace("inf", "+Inf")
                values = [value] * (2 if process.ended else 9) + ["0.5"] * (number % 3 == 0 and not process.ended)
                labels = {**process.labels, "training_stage": stage}.items()
                inputs.append({"series": text(metric, labels), "values": " ".join(values)})
    checks = [
        {
            "expr": name,
            "eval_time": "9m",
            "exp_samples": [{"labels": text(name, labels), "value": value} for labels, value in series.items()],
        }
        for name, series in recorded(processes).items()
    ]
    return {"name": f"seed {seed}", "interval": "1m", "input_series": inputs, "promql_expr_test": checks}


def test_recorded_series_are_those_of_random_jobs(promtool: str, tmp_path: Path) -> None:
    """Each series of each rule has the value and the labels that the truth has, and there is no other one."""
    seeds = range(20)
    tests = {"rule_files": [str(COMPOSE / "stages.yml")], "evaluation_interval": "30s", "tests": list(map(case, seeds))}
    file = tmp_path / "stages.json"  # which is YAML
    file.write_text(json.dumps(tests))
    run(promtool, "test", "rules", file)
