"""The guide of trainers: each of its queries gives the true number, noted by the job itself."""

import json
import re
from bisect import bisect_right
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Stack
from tests.support.inbox import DEADLINE
from tests.support.paths import EXAMPLES, ROOT
from tests.support.scripts import Run

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="pip install torch transformers accelerate")

PAGE = ROOT / "docs" / "how-to" / "trainers.md"
SCRIPT = EXAMPLES / "train_transformers.py"
STEPS, BATCH_SIZE, LENGTH = 1500, 16, 32
SECONDS = 6  # of a rate; the guide's job is longer, and so is its time of a rate

# Runs the example, and notes the time of each step.
NOTING = """\
import json, runpy, sys, time
from transformers import TrainerCallback, trainer

class Notes(TrainerCallback):
    times = []
    def on_step_end(self, *_, **__):
        self.times.append(time.time())

trainer.DEFAULT_CALLBACKS.append(Notes)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps(Notes.times))
"""


def queries() -> set[str]:
    rows = re.findall(r"^\| [^|]+\? [^|]*\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {query for row in rows for query in re.findall(r"`([^`]+)`", row)}


def ask(stack: Stack, query: str, at: float) -> float:
    (found,) = stack.prometheus.get("query", query=query, time=at)["result"]
    return float(found["value"][1])


def true_rate(stack: Stack, times: list[float], at: float) -> float:
    """Return the samples per second between the first and the last point that Prometheus has of the time of a rate."""
    (found,) = stack.prometheus.get("query", query=f"training_samples_total[{SECONDS}s]", time=at)["result"]
    first, last = (float(each[0]) for each in (found["values"][0], found["values"][-1]))
    return BATCH_SIZE * (bisect_right(times, last) - bisect_right(times, first)) / (last - first)


def test_each_query_gives_the_true_number(stack: Stack, run: Run, tmp_path: Path) -> None:
    """Loss, step, samples, throughput within 2 %, and the duration of a step."""
    environment = {**stack.variables, "HF_HUB_OFFLINE": "1", "OTEL_METRIC_EXPORT_INTERVAL": "250"}
    job = ("-c", NOTING, SCRIPT, "--steps", STEPS, "--run-dir", "run")
    done = run(*job, env=environment, timeout=3 * DEADLINE, fresh=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    history: list[dict[str, Any]] = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    losses, evaluations = ([each[name] for each in history if name in each] for name in ("loss", "eval_loss"))
    while_it_runs, afterwards = times[-1] - 0.5, times[-1] + 5
    rate = true_rate(stack, times, while_it_runs)
    steps = [end - begin for begin, end in pairwise(times)]
    middle = (min(steps) + max(steps)) / 2
    truth = {
        "train_loss": (afterwards, losses[-1]),
        "eval_loss": (afterwards, evaluations[-1]),
        "max by (training_rank) (training_step)": (afterwards, STEPS),
        "sum(rate(training_samples_total[30s]))": (while_it_runs, pytest.approx(rate, rel=0.02)),
        "sum(rate(training_tokens_total[30s]))": (while_it_runs, pytest.approx(rate * LENGTH, rel=0.02)),
        "training_step_duration_mean_seconds": (afterwards, pytest.approx(middle, abs=middle - min(steps))),
    }
    assert STEPS == len(times)
    assert truth.keys() == queries()
    assert {query: value for query, (_, value) in truth.items()} == {
        query: ask(stack, query.replace("30s", f"{SECONDS}s"), at) for query, (at, _) in truth.items()
    }
