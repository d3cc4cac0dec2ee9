"""``monitel run -- torchrun``: both ranks of an unchanged script are recorded, and a killed one is named."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.processes.console.commands import RUN, outcome

if TYPE_CHECKING:
    from tests.support.receiver import Receiver

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

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
TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--monitor-interval",
    "0.1",
    "--nproc-per-node",
    "2",
    "train.py",
)


def by_rank(receiver: Receiver, name: str) -> dict[object, float]:
    """Return the last value of a metric by rank."""
    return {point.resource.get("training.rank"): point.value for point in receiver.points(name)}


def test_ranks_are_recorded_without_code(receiver: Receiver) -> None:
    """The launcher and the workers of the DataLoader are not; the summary names the steps."""
    Path("train.py").write_text(TRAIN)
    ended = outcome([*RUN[:-1], "--endpoint", receiver.url, *TORCHRUN], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (0, "") == (ended.status, ended.stdout), ended.stderr + ended.summary
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps")
    points = receiver.points("training.stage.duration.mean")
    assert {(rank, stage) for rank in (0, 1) for stage in STAGES} == {
        (each.resource["training.rank"], each.attributes["training.stage"]) for each in points
    }
    assert ["attempt.started", "attempt.ended"] == sorted(receiver.record_names(), reverse=True)
    assert {None, 0, 1} == {None, *(each.resource.get("training.rank") for each in receiver.all_points())}
    assert f"{STEPS} steps" in ended.summary


def test_killed_rank_is_named(receiver: Receiver) -> None:
    """With the signal, although torchrun is its parent; torchrun ends as without ``run``."""
    Path("train.py").write_text(TRAIN)
    command = [*TORCHRUN, "kill"]
    ended = outcome([*RUN[:-1], "--endpoint", receiver.url, *command], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert 1 == ended.status
    last = receiver.records()[-1]
    assert ("attempt.ended", 1, "killed by SIGKILL") == (
        last.name,
        last.attributes["attempt.first_death.rank"],
        last.attributes["attempt.first_death"],
    )
    (died,) = [each for each in receiver.records() if each.name == "process.died"]
    assert (1, "SIGKILL", STEPS) == (
        died.resource["training.rank"],
        died.attributes["process.exit.signal"],
        died.attributes["training.step"],
    )
    assert {0: STEPS, 1: STEPS} == by_rank(receiver, "training.steps")
    assert "rank 1 killed by SIGKILL" in ended.summary
