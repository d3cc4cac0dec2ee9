"""``monitel run -- torchrun``: an unchanged script is recorded, and a late or killed rank is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.processes.console.commands import RUN, outcome
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.processes.console.commands import Outcome
    from tests.support.receiver import Receiver

pytest.importorskip("torch")

STEPS = 6
STAGES = ("data", "forward", "backward", "sync", "optimizer", "other")
TRAIN = f"""\
import os, signal, sys, time
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
    if "kill" in sys.argv and dist.get_rank() == 1:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def torchrun(receiver: Receiver, ranks: int, *command: str) -> Outcome:
    """Run a program with ``monitel run -- torchrun``."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1")
    words = [*RUN[:-1], "--endpoint", receiver.url, *launcher, "--nproc-per-node", f"{ranks}", *command]
    return outcome(words, timeout=180, env={**os.environ, "OMP_NUM_THREADS": "1"})


def by_rank(receiver: Receiver, name: str) -> dict[object, float]:
    """Return the last value of a metric by rank."""
    return {point.resource.get("training.rank"): point.value for point in receiver.points(name)}


def test_ranks_are_recorded_without_code(receiver: Receiver) -> None:
    """The launcher and the workers of the DataLoader are not; the summary names the steps."""
    Path("train.py").write_text(TRAIN)
    ended = torchrun(receiver, 2, "train.py")
    assert (0, "") == (ended.status, ended.stdout), ended.stderr + ended.summary
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps")
    points = receiver.points("training.stage.duration.mean")
    assert {(rank, stage) for rank in (0, 1) for stage in STAGES} == {
        (each.resource["training.rank"], each.attributes["training.stage"]) for each in points
    }
    assert {0, 1} == {
        rank for each in receiver.all_points() if (rank := each.resource.get("training.rank")) is not None
    }
    assert f"2 ranks, {STEPS} steps" in ended.summary


def test_killed_rank_is_named(receiver: Receiver) -> None:
    """With the signal, although torchrun is its parent; torchrun ends as without ``run``."""
    Path("train.py").write_text(TRAIN)
    ended = torchrun(receiver, 2, "train.py", "kill")
    assert 1 == ended.status
    last = receiver.records()[-1]
    assert ("attempt.ended", 1, "killed by SIGKILL") == (
        *(last.name, last.attributes["attempt.first_death.rank"]),
        last.attributes["attempt.first_death"],
    )
    (died,) = [each for each in receiver.records() if each.name == "process.died"]
    assert (1, "SIGKILL", STEPS) == (
        *(died.resource["training.rank"], died.attributes["process.exit.signal"]),
        died.attributes["training.step"],
    )
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps")
    assert f"dead: rank 1 killed by SIGKILL at step {STEPS}" in " ".join(ended.summary.split())


def test_late_rank_is_named(receiver: Receiver) -> None:
    """Rank and stage are those that the job was given, and no other rank is later than a fraction of them."""
    ended = torchrun(receiver, 4, str(ROOT / "docs/examples/train_ddp.py"), "--steps", "60", "--late", "data:2:200ms")
    assert 0 == ended.status, ended.stderr + ended.summary
    summary = " ".join(ended.summary.split())
    assert "monitel run: train-ddp, 4 ranks, 60 steps, " in summary
    milliseconds = float(summary.partition("verdict late rank: rank 2 took ")[2].partition(" ms longer than")[0])
    assert milliseconds == pytest.approx(200, rel=0.1)
    assert f"rank 2 took {milliseconds} ms longer than the others in data (" in summary
