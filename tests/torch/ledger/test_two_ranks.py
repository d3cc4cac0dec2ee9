"""The ledgers of two ranks that wait for each other, against times that the job measures itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

pytestmark = pytest.mark.torch

TOLERANCE = 0.3  # seconds, on a loaded machine
JOB = """\
import json, sys, time, warnings
from contextlib import contextmanager
from pathlib import Path

import monitel
import torch
import torch.distributed as dist
from torch.distributed import init_process_group

import monitel.torch

events, measured, folder, rank = [], {}, Path(sys.argv[1]), int(sys.argv[2])
monitel.register_event_handler(lambda event: events.append(event) if "checkpoint" in event.name else None)
monitel.torch.instrument(monitor=False)

@contextmanager
def measuring(name):
    begin = time.perf_counter()
    yield
    measured[name] = measured.get(name, 0) + time.perf_counter() - begin

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        time.sleep(0.2)
        return torch.ones(1)

class State:
    def state_dict(self):
        time.sleep(0.4)
        return {"weight": torch.ones(100)}

    def load_state_dict(self, state):
        time.sleep(0.3)

with measuring("init"):
    init_process_group("gloo", init_method=(folder / "store").as_uri(), rank=rank, world_size=2)
with measuring("startup"):
    dist.barrier()
    time.sleep(0.5 * rank)
with measuring("init"):
    dist.new_group([0, 1])

import torch.distributed.checkpoint as dcp

parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
with measuring("data"):
    loader = iter(torch.utils.data.DataLoader(Items()))
for _ in range(3):
    with measuring("data"):
        item = next(loader)
    (parameter * item).backward()
    optimizer.step()
with measuring("step"):
    time.sleep(0.3)
with measuring("checkpoint.save"):
    dcp.save({"model": State()}, checkpoint_id=folder / "dcp")
with measuring("checkpoint.load"):
    dcp.load({"model": State()}, checkpoint_id=folder / "dcp")
with measuring("checkpoint.save"):
    future = dcp.async_save({"model": State()}, checkpoint_id=folder / "async", process_group=dist.group.WORLD)
with measuring("step"):
    future.result()
    while len(events) < 3:  # its callbacks run after this thread has been woken
        time.sleep(0.01)
monitel.flush()
book = monitel.ledger()
assert sum(book.activities.values()) == book.elapsed_ns
seconds = {name: total / 1e9 for name, total in book.activities.items()}
named = [(each.name, each.step, Path(each.data["checkpoint.path"]).name) for each in events]
print(json.dumps([seconds, measured, named, book.ignored]))
dist.destroy_process_group()
"""


def test_ledgers_of_two_ranks(tmp_path: Path) -> None:
    """Each activity has the time that the job measures around it, and at least the time that is known."""
    script = tmp_path / "job.py"
    script.write_text(JOB, encoding="utf-8")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    jobs = [
        subprocess.Popen(
            [sys.executable, script, tmp_path, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [job.communicate(timeout=120) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [0, 0] == [job.returncode for job in jobs], ended
    for rank, (stdout, _) in enumerate(ended):
        seconds, measured, events, ignored = json.loads(stdout)
        known: dict[str, Any] = {"data": 0.6, "step": 0.3, "checkpoint.save": 0.8, "checkpoint.load": 0.7}
        for name, least in known.items():
            assert seconds[name] >= least
        if rank == 0:
            assert seconds["init"] >= 0.5 - TOLERANCE  # it waits for rank 1
        for name in ("init", "data", "checkpoint.save", "checkpoint.load"):
            assert seconds[name] == pytest.approx(measured[name], abs=TOLERANCE)
        assert seconds["startup"] >= measured["startup"]
        assert seconds["step"] >= measured["step"]
        assert {*seconds} == {"startup", "init", *known}
        expected = [["checkpoint.saved", 3, "dcp"], ["checkpoint.loaded", 3, "dcp"], ["checkpoint.saved", 3, "async"]]
        assert expected == events
        assert 0 == ignored
