"""SIGTERM to jobs of torchrun: with monitel they end as without it, and nothing is lost."""

from pathlib import Path

from tests.support.receiver import Receiver
from tests.torch.ranks.terminated_job import compare

LAUNCHER = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
TORCHRUN = """\
import torch.distributed
torch.distributed.init_process_group("gloo")
begin()
if torch.distributed.get_rank() == 1:
    threading.Timer(1.0, ready).start()
    torch.distributed.barrier()
while True:
    train()
"""


def test_torchrun(tmp_path: Path, receiver: Receiver) -> None:
    """The agent forwards SIGTERM; a worker that runs Python and one that waits in a collective both deliver."""
    compare(tmp_path, receiver, TORCHRUN, launcher=LAUNCHER, workers=2)


def test_torchrun_with_a_worker_that_fails(tmp_path: Path, receiver: Receiver) -> None:
    """The agent sends SIGTERM to the other worker, which waits in a collective."""
    script = TORCHRUN.replace("while True", "while steps < 100") + "sys.exit(3)\n"
    assert 1 == compare(tmp_path, receiver, script, launcher=LAUNCHER, workers=2, signals=())
