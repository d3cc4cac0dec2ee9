"""Ranks that hang inside their steps for half a minute: ``monitel top`` names the rank that the other waits for."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.processes.conftest import console
from tests.processes.console.jobs import Console
from tests.support.scripts import write_script

__all__ = ["console"]

#: Twenty steps; then rank 1 hangs in the middle of the stage that the argument names.
JOB = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import monitel.torch
HANGS = ""

def hang(stage):
    if stage == HANGS:
        time.sleep(1000)

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


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_rank_that_hangs_inside_its_step(tmp_path: Path, console: Console, stage: str) -> None:
    """No wait counter and no activity shows it. The other rank waits in backward for its gradients."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = (sys.executable, *launcher, str(write_script(tmp_path, JOB)), stage)
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL) as process:
        try:
            with console.watching() as until:
                rows = until(lambda rows: ["stuck"] * 2 == [row["verdict"]["kind"] for row in rows.values()])
        finally:
            with suppress(OSError):
                for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            process.kill()
    assert [("backward", True), (stage, False)] == [
        (rows[rank]["stage"]["name"], rows[rank]["stage"]["waits_for_ranks"]) for rank in (0, 1)
    ]
    found = rows[0]["verdict"]
    assert (1, stage) == (found["rank"], found["stage"])
    assert found["text"].startswith(f"stuck: rank 1 has been in {stage} for ")
    assert found["text"].endswith("; rank 0 waits for it in backward")
