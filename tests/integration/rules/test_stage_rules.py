"""The recorded series of stages, compared with those of random jobs with known times."""

import json
from pathlib import Path
from typing import Any

from tests.integration.conftest import COMPOSE
from tests.integration.rules.drawn_jobs import drawn, recorded
from tests.integration.rules.test_rules import promtool, run

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
