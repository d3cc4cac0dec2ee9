"""Training of a model on two ranks of torchrun with ``monitel.torch``: the backend receives all metrics."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitel_otel.torch_instrumentor import TorchInstrumentor

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

STEPS = 6
STAGES = {"optimizer", "other", "data", "forward", "backward", "sync"}
TRAIN = f"""\
import zlib
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

METHOD = None  # or how the workers of the DataLoader are started

def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[:, :4]), batch[:, 4])

def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = zlib.__doc__.encode() * 20  # real text: the next character is learnt from the four before
    characters = torch.tensor(list(text[: {STEPS} * 8 * 2 + 4]))
    data = TensorDataset(characters.unfold(0, 5, 1)[: {STEPS} * 8])
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Embedding(256, 8), torch.nn.Flatten(), torch.nn.Linear(32, 256)
    ))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    workers = dict(num_workers=1, multiprocessing_context=METHOD) if METHOD else {{}}
    before = loss_of(model, *data.tensors).item()
    for (batch,) in DataLoader(data, batch_size=8, **workers):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    after = loss_of(model, *data.tensors).item()
    assert after < before - 1, (before, after)
    if fail and dist.get_rank() == 1:
        raise RuntimeError("rank 1 has had enough")
    dist.destroy_process_group()

fail = False
"""
MAIN = """
if __name__ == "__main__":
    train()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def by_rank(receiver: Receiver, name: str) -> dict[object, float]:
    """Return the last value of a metric by rank."""
    found: dict[object, float] = defaultdict(float)
    for point in receiver.points(name):
        found[point.resource.get("training.rank")] = point.value
    return dict(found)


def check(receiver: Receiver) -> None:
    """Check that both ranks, and no other process, have reported their steps, stages and waits."""
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps")
    assert {0: 0, 1: 0} == by_rank(receiver, "training.steps.skipped")
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.step")
    assert {0: STEPS - 1, 1: STEPS - 1} == by_rank(receiver, "training.step.duration.count")
    stages: dict[object, set[str]] = {0: set(), 1: set()}
    for point in receiver.points("training.stage.duration.mean"):
        stages[point.resource.get("training.rank")].add(point.attributes["training.stage"])
        assert 0 <= point.value < 60
    assert {0: STAGES, 1: STAGES} == stages
    durations = by_rank(receiver, "training.step.duration.sum")
    assert all(0 < seconds < 60 for seconds in durations.values())
    assert {0: 8 * STEPS, 1: 8 * STEPS} == by_rank(receiver, "training.samples")
    samples = {rank: rate * durations[rank] for rank, rate in by_rank(receiver, "training.samples.rate").items()}
    assert dict.fromkeys((0, 1), pytest.approx(8 * (STEPS - 1))) == samples  # those after the first step
    joining = "pytorch.wait_counter.c10d.init_process_group.wait"
    assert {0: 1, 1: 1} == by_rank(receiver, f"{joining}.count")
    assert {0: 0, 1: 0} == by_rank(receiver, f"{joining}.active")
    assert all(0 < seconds < 60 for seconds in by_rank(receiver, f"{joining}.time").values())
    # A key of C++. Without code, the SDK converts it to lower case.
    in_cpp = [f"pytorch.wait_counter.{key}__init.wait.time" for key in ("TCPStore", "tcpstore")]
    assert [{0, 1}] == [set(ranks) for key in in_cpp if (ranks := by_rank(receiver, key))]
    points = [point for point in receiver.all_points() if not point.metric.startswith("monitel.")]
    assert {0, 1} == {point.resource.get("training.rank") for point in points}
    assert 2 == len({point.resource["service.instance.id"] for point in points})


CONFIGURED = """\
import sys
import monitel, monitel_otlp, monitel.torch
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool")
monitel.torch.instrument(samples_per_step=8)
"""


def test_two_ranks(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Two lines in the script export the metrics of both ranks."""
    path = tmp_path / "train.py"
    path.write_text(CONFIGURED + TRAIN + MAIN)
    run(*TORCHRUN, path, receiver.url, timeout=120)
    check(receiver)


def test_exception_of_a_rank_is_reported(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """The record has rank, step and stack trace, and is delivered before the process ends."""
    path = tmp_path / "train.py"
    path.write_text(CONFIGURED + TRAIN + "fail = True\n" + MAIN)
    run(*TORCHRUN, path, receiver.url, returncode=1, timeout=120)
    (record,) = [record for record in receiver.records() if record.attributes.get("training.rank") == 1]
    assert ("exception", STEPS, "rank 1 has had enough") == (
        record.name,
        record.attributes["training.step"],
        record.attributes["exception.message"],
    )
    assert "in train" in record.attributes["exception.stacktrace"]
    assert 1 == record.resource["training.rank"]


def instrument() -> Path:
    """Return the path of ``opentelemetry-instrument``."""
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")
    return Path(sys.executable).with_name("opentelemetry-instrument")


def variables(receiver: Receiver) -> dict[str, str]:
    """Return the variables for an export without code."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel",
        **dict.fromkeys(("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"), "monitel"),
        "OTEL_TRACES_EXPORTER": "none",
        "MONITEL_SAMPLES_PER_STEP": "8",
    }


@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_ranks_are_instrumented_without_code(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """``opentelemetry-instrument torchrun`` instruments both ranks, but neither the launcher nor DataLoader workers."""
    assert [TorchInstrumentor] == [
        each.load() for each in entry_points(group="opentelemetry_instrumentor", name="monitel_torch")
    ]
    path = tmp_path / "train.py"
    path.write_text(TRAIN + "METHOD = 'spawn'\n" + MAIN)
    ended = run(instrument(), sys.executable, *TORCHRUN, path, env=variables(receiver), timeout=180)
    check(receiver)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("monitel:")]
    assert 2 * ["monitel: exported 8 windows and numbers, 1 events"] == lines


LAST = """\
import datetime
from torch.monitor import Event, log_event
log_event(Event("theirs", datetime.datetime.now(), {}))
"""


def test_last_event_of_torch_is_exported(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """An event that torch logs just before the end arrives, although the bridge's thread has not seen it."""
    run("-c", CONFIGURED + LAST, receiver.url)
    assert ["theirs"] == receiver.record_names()


def test_only_ranks_are_instrumented(run: Run) -> None:
    """A process without RANK, or one that a rank starts, is not instrumented and does not import torch."""
    script = (
        "import os, subprocess, sys\n"
        "from monitel_otel.torch_instrumentor import TorchInstrumentor\n"
        "TorchInstrumentor().instrument(skip_dep_check=True)\n"
        "print('torch' in sys.modules, flush=True)\n"
        "if sys.argv[1:]: subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
        "TorchInstrumentor().uninstrument()\n"
    )
    assert "False\nFalse\n" == run("-c", script, script).stdout
    assert "True\nFalse\n" == run("-c", script, script, env={"RANK": "0"}).stdout
