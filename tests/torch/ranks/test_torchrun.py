"""Jobs of torchrun by ``opentelemetry-instrument``, and their late ranks; an example."""

import json
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import EXAMPLES, ROOT
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import cat
from tests.torch.ranks.late_jobs import KINDS, LATE, victim

from monitel.console.lateness import suspects
from monitel_otel.torch_instrumentor import TorchInstrumentor

STEPS = 6
STAGES = {"optimizer", "other", "data", "forward", "backward", "sync"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node")
TRAIN = f"""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.ones({STEPS} * 8, 4)), 8, num_workers=1, multiprocessing_context="spawn")
    for (batch,) in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def by_rank(receiver: Receiver, name: str) -> dict[object, float]:
    return {point.resource.get("training.rank"): point.value for point in receiver.points(name)}


@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_ranks_are_instrumented_without_code(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Both report their steps, stages and waits; neither the launcher nor DataLoader workers are instrumented."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="monitel_torch")
    assert TorchInstrumentor is entry.load()
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "otlp_proto_http",
        "OTEL_LOGS_EXPORTER": "otlp_proto_http",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel",
        "MONITEL_SAMPLES_PER_STEP": "8",
    }
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    ended = run(program, sys.executable, *TORCHRUN, "2", path, env=env, timeout=240)
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps") == by_rank(receiver, "training.step")
    assert {0: STEPS - 1, 1: STEPS - 1} == by_rank(receiver, "training.step.duration.count")
    points = receiver.points("training.stage.duration.mean")
    assert {(rank, stage) for rank in (0, 1) for stage in STAGES} == {
        (each.resource.get("training.rank"), each.attributes["training.stage"]) for each in points
    }
    durations = by_rank(receiver, "training.step.duration.sum")
    assert {0: 8 * STEPS, 1: 8 * STEPS} == by_rank(receiver, "training.samples")
    samples = {rank: rate * durations[rank] for rank, rate in by_rank(receiver, "training.samples.rate").items()}
    assert dict.fromkeys((0, 1), pytest.approx(8 * (STEPS - 1))) == samples  # those after the first step
    joining = "pytorch.wait_counter.c10d.init_process_group.wait"
    assert {0: 1, 1: 1} == by_rank(receiver, f"{joining}.count")
    assert {0: 0, 1: 0} == by_rank(receiver, f"{joining}.active")
    points = [point for point in receiver.all_points() if not point.metric.startswith("monitel.")]
    assert {0, 1} == {point.resource.get("training.rank") for point in points}
    assert 2 == len({point.resource["service.instance.id"] for point in points})
    lines = [line for line in ended.stderr.splitlines() if line.startswith("monitel:")]
    assert 2 * ["monitel: exported 8 windows and numbers, 1 events"] == lines


ONLY_RANKS = """\
import os, subprocess, sys
from monitel_otel.torch_instrumentor import TorchInstrumentor
TorchInstrumentor().instrument(skip_dep_check=True)
print('torch' in sys.modules, flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)
TorchInstrumentor().uninstrument()
"""


def test_only_ranks_are_instrumented(run: Run) -> None:
    """A process that a rank starts is not instrumented, and does not import torch."""
    assert "True\nFalse\n" == run("-c", ONLY_RANKS, ONLY_RANKS, env={"RANK": "0"}, fresh=True).stdout


def test_late_rank_is_named_in_each_kind_of_job(run: Run, tmp_path: Path) -> None:
    """With its stage and the delay, and nobody else; the others are seen waiting. All gradients stay the same."""
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run(*TORCHRUN, "4", "-m", "tests.torch.ranks.late_jobs", tmp_path, env=environment, timeout=240)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for kind, (_, stage) in KINDS.items():
        assert all(each[kind]["same"] for each in ranks), kind
        assert all(each[kind]["waits"] for rank, each in enumerate(ranks) if rank != victim(kind)), kind
        groups: dict[Any, dict[int, dict[str, float]]] = {}
        for rank, each in enumerate(ranks):
            groups.setdefault(each[kind]["group"], {})[rank] = each[kind]["stages"]
        found: list[Any] = [each for times in groups.values() for each in suspects(times) if each[0] > LATE / 2]
        assert [(pytest.approx(LATE, rel=1 / 3), victim(kind), stage)] == found, (kind, groups)


def test_telemetry_changes_nothing(run: Run, tmp_path: Path) -> None:
    """The example with telemetry prints the same losses as the one without. Its rates and events are on disk."""
    scripts = (EXAMPLES / "torch_char_model.py", EXAMPLES / "train_torch.py")
    plain, observed = (run(script, "--batch-size", "8", "--steps", "50", timeout=240) for script in scripts)
    assert plain.stdout == observed.stdout
    assert ["step", "held-out"] == [line.split()[0] for line in plain.stdout.splitlines()]
    on_disk = cat(tmp_path / "state/monitel")
    for metric in ("train.loss.mean", "training.steps", "training.tokens", "training.tokens.rate", "training.mfu"):
        assert on_disk.points(metric), metric
    assert 1 == on_disk.names.count("evaluation")
