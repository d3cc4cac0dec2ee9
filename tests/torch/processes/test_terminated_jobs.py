"""SIGTERM to jobs of torch: with monitel they end as without it, and nothing is lost."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.support.receiver import Receiver
from tests.torch.processes.terminated_job import compare, run

INIT = """\
import torch.distributed
begin()
threading.Timer(1.0, ready).start()
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=0, world_size=2)
"""


def test_process_that_waits_for_a_peer(tmp_path: Path, receiver: Receiver) -> None:
    """While ``init_process_group`` waits in C++, everything arrives within two seconds, and the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = run(tmp_path / "with", INIT, "with", receiver.url, str(port))
    assert -signal.SIGTERM == ended.status, ended.stderr
    assert ended.seconds <= 20  # two of them are monitel's
    assert ["begin"] == receiver.record_names()
    assert [1] == receiver.values("loss.count")


DATA_LOADER = """\
import torch.utils.data
from torch.utils.data import DataLoader

begin()
for batch in DataLoader(range(10**6), num_workers=2, multiprocessing_context="fork"):
    train()
"""


def test_data_loader_with_workers(tmp_path: Path, receiver: Receiver) -> None:
    """Forked workers end with their parent."""
    found = compare(tmp_path, receiver, DATA_LOADER)
    assert -signal.SIGTERM == found.status
