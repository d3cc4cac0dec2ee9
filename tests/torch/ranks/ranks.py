"""Start of the ranks of a job, without a launcher."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from torch import distributed

_DEADLINE = 240  # seconds, on a loaded machine
_DEADLINE_PER_ARGUMENT = 5


def run_ranks(module: str, ranks: int, folder: Path, *arguments: str) -> None:
    """Run a module of the tests on several ranks, which must succeed, and wait for its end.

    Args:
        module: Its name, within this package.
        ranks: Their number.
        folder: An empty folder, the first argument of the module.
        *arguments: Its other arguments.
    """
    command = [sys.executable, "-m", f"{__package__}.{module}", str(folder), *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    with (folder / "output.txt").open("w") as output:
        jobs = [
            subprocess.Popen(
                command, cwd=ROOT, env={**environment, "RANK": str(rank)}, stdout=output, stderr=subprocess.STDOUT
            )
            for rank in range(ranks)
        ]
        try:
            deadline = _DEADLINE + _DEADLINE_PER_ARGUMENT * len(arguments)
            ended = [job.wait(timeout=deadline) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    assert [0] * ranks == ended, (folder / "output.txt").read_text(errors="replace")[-5000:]


def join(folder: Path) -> int:
    """Make the process group of the job, and return the rank."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", init_method=(folder / "store").as_uri(), rank=rank, world_size=ranks)
    return rank
