"""The examples for PyTorch, alone and on two ranks of torchrun: what Prometheus has stored of each rank."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.conftest import ROOT
from tests.integration.services import DEADLINE

if TYPE_CHECKING:
    from tests.integration.conftest import Prometheus, Stack

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

PLAIN, WITH_TELEMETRY = (ROOT / "docs" / "examples" / name for name in ("torch_char_model.py", "train_torch.py"))
STEPS, PASSAGES, CONTEXT = 120, 32, 64
ARGUMENTS = ("--steps", STEPS, "--batch-size", PASSAGES)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
ALONE, RANKS = {""}, {"0", "1"}  # labels
STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")
JOINING = "pytorch_wait_counter_c10d_init_process_group_wait"


def run(*command: object, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which must be a good one."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done


def latest(prometheus: Prometheus, series: str) -> dict[str, float]:
    """The last value of a series, by rank."""
    found = prometheus.ask("query", query=series)["result"]
    values = {each["metric"].get("training_rank", ""): float(each["value"][1]) for each in found}
    assert len(values) == len(found), f"{series}: more than one of a rank"
    return values


def logged(prometheus: Prometheus, number: str) -> dict[str, list[float]]:
    """Return the values of a logged number, by rank, in the order of time."""
    found = prometheus.ask("query", query=f"{number}[1h]")["result"]
    return {each["metric"].get("training_rank", ""): [float(value) for _, value in each["values"]] for each in found}


def windows(prometheus: Prometheus, stat: str) -> dict[str, list[dict[str, float]]]:
    """The aggregations of each window of a Stat, by rank, in the order of time; without the start points of totals."""
    found: dict[str, dict[float, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for series in prometheus.ask("query", query=f'{{__name__=~"{stat}_.*"}}[1h]')["result"]:
        aggregation = series["metric"]["__name__"].removeprefix(f"{stat}_").partition("_")[0]  # a unit may follow
        for at, value in series["values"]:
            found[series["metric"].get("training_rank", "")][at][aggregation] = float(value)
    return {rank: [own[at] for at in sorted(own) if "mean" in own[at]] for rank, own in found.items()}


def check(prometheus: Prometheus, ranks: set[str]) -> None:
    """Check the metrics of every training: those of these ranks, and no others."""
    assert dict.fromkeys(ranks, STEPS) == latest(prometheus, "training_steps_total")
    assert dict.fromkeys(ranks, STEPS) == latest(prometheus, "training_step")
    stages = STAGES if ranks == RANKS else STAGES[:-1]
    for stage in STAGES:
        means = latest(prometheus, f'training_stage_duration_mean_seconds{{training_stage="{stage}"}}')
        assert means.keys() == (ranks if stage in stages else set())
        assert all(0 <= seconds < DEADLINE for seconds in means.values())
    durations = windows(prometheus, "training_step_duration")
    assert ranks == durations.keys()
    for own in durations.values():
        assert STEPS - 1 == own[-1]["count"]
        before = {"count": 0.0, "sum": 0.0}
        for window in own:
            count, total = window["count"] - before["count"], window["sum"] - before["sum"]
            assert 0 < window["min"] <= window["mean"] <= window["max"] < DEADLINE
            assert window["mean"] == pytest.approx(total / count)
            before = window
    if ranks == RANKS:
        assert dict.fromkeys(ranks, 1) == latest(prometheus, f"{JOINING}_count_total")
        assert dict.fromkeys(ranks, 0) == latest(prometheus, f"{JOINING}_active")
        waited = latest(prometheus, f"{JOINING}_time_seconds_total")
        assert waited == latest(prometheus, f"{JOINING}_max_seconds")
        assert all(0 < seconds < DEADLINE for seconds in waited.values())
        in_cpp = "pytorch_wait_counter_tcpstore_init_wait_time_seconds_total"  # in lower case if through the SDK
        assert ranks == latest(prometheus, f'{{__name__=~"(?i){in_cpp}"}}').keys()
    speaking = prometheus.ask("query", query='group by (job, instance, training_rank) ({instance!=""})')["result"]
    assert sorted(ranks) == sorted(each["metric"].get("training_rank", "") for each in speaking)
    assert {"char-model"} == {each["metric"]["job"] for each in speaking}


def check_configured(stack: Stack, ranks: set[str], printed: str) -> None:
    """Check what the configured script records in addition: its tokens and their rate, its loss, and an event."""
    check(stack.prometheus, ranks)
    assert dict.fromkeys(ranks, STEPS * PASSAGES * CONTEXT) == latest(stack.prometheus, "training_tokens_total")
    durations, losses = (windows(stack.prometheus, stat) for stat in ("training_step_duration", "train_loss"))
    rates, utilisation = (logged(stack.prometheus, name) for name in ("training_tokens_rate", "training_mfu_ratio"))
    assert ranks == rates.keys() == losses.keys() == utilisation.keys()
    for rank in ranks:
        assert 1 < len(durations[rank]), "a window is a second"
        fastest = min(window["min"] for window in durations[rank])
        assert all(0 < each <= PASSAGES * CONTEXT / fastest for each in rates[rank])
        assert len(rates[rank]) == len(utilisation[rank])
        first, last = losses[rank][0], losses[rank][-1]
        assert STEPS == last["count"]
        assert 4.8 < first["max"] < 5, "at first, all of 128 characters are alike"
        assert last["mean"] < 3
    records = stack.receiver.records("evaluation")
    assert sorted(ranks) == sorted(str(record.resource.get("training.rank", "")) for record in records)
    assert {STEPS} == {record.attributes["training.step"] for record in records}
    (held_out,) = {float(str(record.attributes["loss"])) for record in records}  # of one model, which the ranks share
    assert held_out < 3
    assert printed.endswith(f"held-out loss {held_out:.3f}\n")


def test_alone(stack: Stack, tmp_path: Path) -> None:
    """``python train_torch.py``: one process, and nothing of the worker of its DataLoader."""
    done = run(sys.executable, WITH_TELEMETRY, *ARGUMENTS, folder=tmp_path, environment=stack.environment)
    check_configured(stack, ALONE, done.stdout)


def test_two_ranks(stack: Stack, tmp_path: Path) -> None:
    """``torchrun --nproc-per-node 2 train_torch.py``: the same of each rank, and how it has joined the other."""
    done = run(*TORCHRUN, WITH_TELEMETRY, *ARGUMENTS, folder=tmp_path, environment=stack.environment)
    check_configured(stack, RANKS, done.stdout)


def test_without_a_line_of_code(stack: Stack, tmp_path: Path) -> None:
    """``opentelemetry-instrument torchrun ...`` of a script without monitel: both ranks, and no others."""
    variables = {
        "OTEL_SERVICE_NAME": "char-model",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel",
        "OTEL_METRICS_EXPORTER": "monitel",
        "OTEL_LOGS_EXPORTER": "monitel",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "600000",  # all of it comes at the end
    }
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    environment = stack.environment | variables
    done = run(instrument, *TORCHRUN, PLAIN, *ARGUMENTS, folder=tmp_path, environment=environment)
    check(stack.prometheus, RANKS)
    printed = [line for line in done.stderr.splitlines() if line.startswith("monitel: ")]
    assert 2 * ["monitel: exported 7 windows and numbers, 0 events"] == printed
