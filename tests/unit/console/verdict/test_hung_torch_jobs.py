"""Jobs of two ranks under torchrun, of which one hangs inside its step: ``monitel top`` names it, and its stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import write_script

from monitel_otlp.__main__ import main
from monitel_otlp.verdict import standstill

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.usefixtures("own_boxes"),
]

PATIENCE_S = 200.0
#: Twenty steps; then rank 1 hangs in the middle of the stage that the argument names.
JOB = f"""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import monitel.torch
HANGS = ""

def hang(stage):
    if stage == HANGS:
        time.sleep({2 * PATIENCE_S})

class Hangs(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        hang("forward")
        return value.clone()
    @staticmethod
    def backward(context, gradient):
        hang("backward")
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    def forward(self, batch):
        return self.last(Hangs.apply(self.first(batch)))

dist.init_process_group("gloo")
monitel_otlp.configure(service_name="hung", spool_dir="spool")
monitel.torch.instrument()
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(200, 4)), 4)):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if number == 20 and dist.get_rank() == 1:
        HANGS = sys.argv[1]
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node", "2")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the rule after three seconds instead of half a minute."""
    monkeypatch.setattr(standstill, "STILL_NS", 3 * 10**9)


@contextmanager
def job_of(folder: Path, stage: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job; end it and its ranks afterwards."""
    path = write_script(folder, JOB)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = (sys.executable, *TORCHRUN, path, stage)
    ranks: list[int] = []
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL) as launcher:
        try:
            yield launcher
        finally:
            with suppress(OSError):
                ranks += map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split())
            for pid in (*ranks, launcher.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def looks(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the rows of ``monitel top --once --json``; none before there is a box."""
    with suppress(SystemExit):
        main(["top", "--once", "--json"])
    printed = capsys.readouterr().out
    return json.loads(printed) if printed.startswith("[") else []


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_rank_that_hangs_inside_its_step(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No wait counter and no activity shows it. The other rank waits in backward for its gradients."""
    deadline, pause = time.monotonic() + PATIENCE_S, Event()  # which is never set
    with job_of(tmp_path, stage) as launcher:
        rows = looks(capsys)
        while not (len(rows) == 2 and rows[0]["verdict"]["kind"] == "stuck"):
            assert launcher.poll() is None
            assert time.monotonic() < deadline, rows
            pause.wait(0.5)
            rows = looks(capsys)
        assert [("backward", True), (stage, False)] == [
            (row["stage"]["name"], row["stage"]["waits_for_ranks"]) for row in rows
        ]
        assert all(0 < row["stage"]["seconds"] <= row["step_age_seconds"] + 1 for row in rows)
        verdict = rows[0]["verdict"]
        assert ("stuck", 1, stage) == (verdict["kind"], verdict["rank"], verdict["stage"])
        assert verdict["text"].startswith(f"stuck: rank 1 has been in {stage} for ")
        assert verdict["text"].endswith("; rank 0 waits for it in backward")
