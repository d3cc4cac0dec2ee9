"""Jobs of transformers, of Lightning and of a plain loop under torchrun, compared with what each job noted itself.

Numbers and configuration arrive with the right steps in Prometheus and as log records, and the rate of samples is the
true throughput. The frameworks are in a separate environment: see ``.ci/run``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import ROOT
from tests.integration.services import DEADLINE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Stack


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip a test if a framework is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"pip install {' '.join(missing)}")


def run(stack: Stack, job: str, *launcher: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run a job to its end; return what each rank noted, by the label of its rank."""
    environment = {
        **stack.environment,
        "OTEL_SERVICE_NAME": "job",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MONITEL_RUN_EVENTS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", *launcher, f"tests.integration.nightly.jobs.{job}"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3 * DEADLINE, check=False
    )
    assert 0 == done.returncode, done.stderr
    noted = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"numbers"')]
    return {each.pop("rank", ""): each for each in noted}


def check_numbers(stack: Stack, noted: dict[str, dict[str, Any]], dotted: Callable[[str], str] = str) -> None:
    """Check that the numbers of each call are one log record with its step, and samples of gauges in Prometheus."""
    eventually(lambda: len(stack.receiver.records("run.ended")) == len(noted), "the records of all ranks are there")
    records = sorted(stack.receiver.records("run.log"), key=lambda record: record.time_ns)
    for rank, each in noted.items():
        own = [record for record in records if str(record.resource.get("training.rank", "")) == rank]
        own = [
            record for record in own if not any(name.startswith("training.") for name in record.body)
        ]  # instrument()
        assert [step for step, _ in each["numbers"]] == [record.attributes["training.step"] for record in own]
        for (_, numbers), record in zip(each["numbers"], own, strict=True):
            assert pytest.approx({dotted(name): value for name, value in numbers.items()}) == record.body
        for name in {name for record in own for name in record.body}:
            series = f'{name.replace(".", "_").replace("-", "_")}{{training_rank="{rank}"}}'
            wanted = distinguishable([(record.time_ns, record.body[name]) for record in own if name in record.body])
            assert pytest.approx(wanted) == {at: float(value) for at, value in stack.prometheus.samples(series)}, name


def distinguishable(values: list[tuple[int, float]]) -> dict[int, float]:
    """Return values by Unix ms. Those less than 1 ms apart are one, with the first time and the last value."""
    found: dict[int, float] = {}
    first_ns = 0
    for time_ns, value in values:
        if time_ns - first_ns >= 1_000_000:
            first_ns = time_ns
        found[first_ns // 1_000_000] = value
    return found


def check_throughput(stack: Stack, noted: dict[str, dict[str, Any]], steps: int) -> None:
    """Check the counters, and ``rate()`` of the samples beside the job's own timeline, within 2 %."""
    for rank, each in noted.items():
        label = f'{{training_rank="{rank}"}}'
        timeline = each["timeline"]
        assert [str(timeline[-1][1])] == stack.prometheus.query(f"training_samples_total{label}")
        assert [str(steps)] == stack.prometheus.query(f"training_steps_total{label}")
        assert [str(steps)] == stack.prometheus.query(f"training_step{label}")
        found = stack.prometheus.samples(f"training_samples_total{label}")
        assert "0" == found[0][1], "a counter starts at zero"
        end = timeline[-1][0] - 0.5
        seconds = round(end - timeline[0][0] - 1)
        before = sum(1 for at, _ in timeline if at <= end - seconds) - 1
        at_end = sum(1 for at, _ in timeline if at <= end) - 1
        true_rate = (timeline[at_end][1] - timeline[before][1]) / (timeline[at_end][0] - timeline[before][0])
        (answer,) = stack.prometheus.ask("query", query=f"rate(training_samples_total{label}[{seconds}s])", time=end)[
            "result"
        ]
        assert pytest.approx(true_rate, rel=0.02) == float(answer["value"][1])


def leaves(value: Any) -> list[Any]:
    """Return the values in nested mappings, each with its last key."""
    if not isinstance(value, dict):
        return []
    found = [(key, inner) for key, inner in value.items() if not isinstance(inner, dict)]
    return found + [each for inner in value.values() for each in leaves(inner)]


@needs("transformers")
def test_transformers(stack: Stack, tmp_path: Path) -> None:
    """Training, evaluation and the summary at the end."""
    noted = run(stack, "transformers_job", folder=tmp_path)

    def dotted(name: str) -> str:
        return f"eval.{name[5:]}" if name.startswith("eval_") else f"train.{name}"

    check_numbers(stack, noted, dotted)
    check_throughput(stack, noted, 501)
    assert [str(noted[""]["tokens"])] == stack.prometheus.query("training_tokens_total")
    (config,) = stack.receiver.records("run.config")
    truth = noted[""]["config"]
    recorded = leaves(config.body)
    for name, value in (
        ("learning_rate", truth["learning_rate"]),
        ("per_device_train_batch_size", truth["batch"]),
        ("n_embd", truth["width"]),
    ):
        assert (name, value) in recorded


@needs("lightning")
def test_lightning(stack: Stack, tmp_path: Path) -> None:
    """Training and validation, beside Lightning's own CSV logger."""
    noted = run(stack, "lightning_job", folder=tmp_path)
    check_numbers(stack, noted)
    check_throughput(stack, noted, 501)
    (config,) = stack.receiver.records("run.config")
    assert noted[""]["config"].items() <= dict(leaves(config.body)).items()


@needs("torch")
def test_plain_loop_on_two_ranks(stack: Stack, tmp_path: Path) -> None:
    """Each rank has its own numbers, samples and configuration."""
    noted = run(stack, "torchrun_job", *TORCHRUN, folder=tmp_path)
    assert {"0", "1"} == noted.keys()
    check_numbers(stack, noted)
    check_throughput(stack, noted, 500)
    configs = stack.receiver.records("run.config")
    assert [noted["0"]["config"]] * 2 == [record.body for record in configs]
    rates = stack.prometheus.ask("query", query="training_samples_rate[1h]")["result"]
    assert {"0", "1"} == {each["metric"]["training_rank"] for each in rates}
