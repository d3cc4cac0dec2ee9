"""The example for the Trainer: its numbers in the telemetry and in TensorBoard are those of the Trainer's own log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = []

SCRIPT = Path(__file__).parents[3] / "docs/examples" / "train_transformers.py"
PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "trainer-job.md"
STEPS, BATCH_SIZE, LENGTH = 220, 16, 32
TIMEOUT = 120


def train(folder: Path, steps: int, *launcher: str) -> Path:
    """Run the example without a backend and without GPUs; return its folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    done = subprocess.run(
        [sys.executable, *launcher, SCRIPT, "--steps", str(steps), "--run-dir", folder / "run"],
        env={**inherited, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run in one process."""
    return train(tmp_path_factory.mktemp("trainer"), STEPS)


def trainer_log(run_dir: Path) -> dict[str, dict[int, float]]:
    """Return the numbers that the Trainer has logged, by name and step, from the file that it writes."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for entry in json.loads((run_dir / "trainer_state.json").read_text())["log_history"]:
        for name, value in entry.items():
            found[name][entry["step"]] = value
    return found


def spooled(run_dir: Path, signal: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rank and the scopes of the requests in the spools, as OTLP's JSON."""
    command = [sys.executable, "-m", "monitel_otlp", "cat", str(run_dir / "telemetry")]
    lines = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True).stdout.splitlines()
    for request in map(json.loads, lines):
        for resource in request.get(f"resource{signal}", ()):
            attributes = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
            rank = attributes.get("training.rank", {"intValue": ""})["intValue"]
            yield from ((rank, scope) for scope in resource[f"scope{signal}"])


def points(run_dir: Path, rank: str = "") -> dict[str, list[float]]:
    """Return the values of each metric of a rank, in the order of time."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for metric in (metric for own, scope in spooled(run_dir, "Metrics") if own == rank for metric in scope["metrics"]):
        for point in metric.get("sum", metric.get("gauge", {})).get("dataPoints", ()):
            value = float(point.get("asDouble", point.get("asInt", "nan")))
            found[metric["name"]].append((int(point["timeUnixNano"]), value))
    return {name: [value for _, value in sorted(own)] for name, own in found.items()}


def test_numbers_are_those_of_the_trainer(run_dir: Path) -> None:
    """Each loss, gradient norm and learning rate that the Trainer has logged is a point of a gauge."""
    truth, found = trainer_log(run_dir), points(run_dir)
    assert STEPS // 20 == len(truth["loss"])
    for name in ("loss", "grad_norm", "learning_rate"):
        assert pytest.approx([*truth[name].values()]) == found[f"train.{name}"]
    assert pytest.approx([*truth["eval_loss"].values()]) == found["eval.loss"]
    assert truth["loss"][STEPS] < truth["loss"][20] / 2, "the model has learned nothing"


def test_steps_samples_and_tokens_are_counted(run_dir: Path) -> None:
    """The counters have the work of the training, without that of the evaluation; the step is the Trainer's."""
    found = points(run_dir)
    expected = {
        "training.steps": STEPS,
        "training.samples": STEPS * BATCH_SIZE,
        "training.tokens": STEPS * BATCH_SIZE * LENGTH,
        "training.step": STEPS,
    }
    assert expected == {name: found[name][-1] for name in expected}


def test_the_tutorial_shows_the_script() -> None:
    """The code of the tutorial is part of the example."""
    (shown,) = re.findall(r"^```python no-run\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = SCRIPT.read_text()
    for part in shown.split("...\n"):
        assert part.strip()
        assert textwrap.indent(part.strip(), "    ") in script or part.strip() in script
