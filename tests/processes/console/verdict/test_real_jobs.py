"""Verdicts about real processes, from their black boxes as ``monitel top`` reads them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import started, wait_until_ready, write_script

from monitel_otlp.top.ranks import Ranks
from monitel_otlp.verdict import standstill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel_otlp.verdict.rules import Verdict

PATIENCE_S = 60.0

#: Steps of 10 ms; then rank 1 waits for data, and the others for it. A thread of each rank waits from the start on.
HUNG = """
import threading
monitel_otlp.configure(service_name="hung", spool_dir="spool")

def prefetch():
    with monitel.WaitCounter("queue.get").guard():
        time.sleep(1000)

threading.Thread(target=prefetch, daemon=True).start()
loss = Stat("train.loss", [MEAN], 60.0)
for step in range(1, 6):
    monitel.set_step(step)
    loss.add(1 / step)
    time.sleep(0.01)
print("ready", flush=True)
if os.environ["RANK"] == "1":
    with monitel.activity("data"):
        time.sleep(1000)
with monitel.WaitCounter("all_reduce").guard():
    time.sleep(1000)
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the rules after a second instead of half a minute."""
    monkeypatch.setattr(standstill, "STILL_NS", 10**9)
    monkeypatch.setattr(standstill, "SILENT_NS", 3 * 10**9)


def wait_for(ranks: Ranks, condition: Callable[[Verdict], bool]) -> Verdict:
    """Look at the only job until all ranks have a box, and its verdict fulfils a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        jobs = ranks.look().jobs
        if [3] == [len(job.ranks) for job in jobs] and condition(jobs[0].verdict):
            return jobs[0].verdict
        assert time.monotonic() < deadline, jobs
        Event().wait(0.1)


@pytest.mark.usefixtures("soon", "own_boxes")
def test_hung_stopped_and_killed_ranks(tmp_path: Path) -> None:
    """The rank that the others wait for is named, then a rank that is stopped, then one that is killed."""
    with ExitStack() as stack:
        processes = []
        for rank in range(3):
            (tmp_path / f"{rank}").mkdir()
            env = {"RANK": f"{rank}", "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "run-7"}
            path = write_script(tmp_path / f"{rank}", HUNG)
            processes.append(stack.enter_context(started(tmp_path / f"{rank}", path, env=env)))
        for process in processes:
            wait_until_ready(process)
        ranks = Ranks()
        # Until then a rank makes its last steps, or has not written its activity, which it does once a second.
        found = wait_for(ranks, lambda verdict: verdict.kind == "stuck" and "been in data" in verdict.text)
        assert (1, "all_reduce") == (found.rank, found.stage)
        assert found.text.startswith("stuck: rank 1 has been in data for ")
        assert found.text.endswith("; ranks 0 and 2 wait for it in all_reduce")
        assert found.seconds is not None
        assert 0.5 <= found.seconds < PATIENCE_S

        os.kill(processes[0].pid, signal.SIGSTOP)
        found = wait_for(ranks, lambda verdict: verdict.kind == "silent")
        assert 0 == found.rank
        os.kill(processes[0].pid, signal.SIGCONT)
        assert 1 == wait_for(ranks, lambda verdict: verdict.kind == "stuck").rank

        processes[2].kill()
        processes[2].wait()
        found = wait_for(ranks, lambda verdict: verdict.kind == "dead")
        assert 2 == found.rank
        assert found.text.startswith("dead: rank 2 died of an unknown cause at step 5")
        ranks.close()
