"""``compose/simulate.py``, which gives the stack a job to show: what arrives from its ranks, and their end."""

import os
import re
import signal
from pathlib import Path

import pytest
from tests.support.checks import wait_until
from tests.support.paths import ROOT
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, started

SIMULATE = ROOT / "compose" / "simulate.py"
SMALL = ("--ranks", 3, "--stats", 4, "--windows", 2, "--window", 0.2)


def test_each_window_arrives_and_the_ranks_to_find_are_printed(receiver: Receiver, run: Run) -> None:
    """With torchrun's attributes; one rank is late in a stage, and one has a loss of NaN."""
    ended = run(SIMULATE, *SMALL, "--late", "data:2:30ms", "--endpoint", receiver.url)
    printed = re.search(r"^outcome  \d+ delivered, 0 on disk, 0 dropped.*\n.*\nNaN      rank (\d)", ended.stdout)
    assert printed, ended.stdout
    assert "late     rank 2: data, 30 ms a step\n" in ended.stdout
    names = ("training.rank", "training.world_size", "training.node_rank", "service.name")
    counts = sorted(tuple(each.resource[name] for name in names) for each in receiver.points("loss.count"))
    assert [(rank, 3, 0, "monitel-simulate") for rank in (0, 0, 1, 1, 2, 2)] == counts
    means: dict[int, float] = {
        each.resource["training.rank"]: each.value
        for each in receiver.points("training.stage.duration.mean")
        if each.attributes["training.stage"] == "data"
    }
    assert means[2] - means[0] == pytest.approx(0.03, rel=0.05)
    (nan,) = receiver.records("loss.nan")
    assert printed[1] == str(nan.resource["training.rank"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_the_command(receiver: Receiver, tmp_path: Path, number: signal.Signals) -> None:
    """At Ctrl-C each rank delivers what it has; if the command is killed, its ranks end too."""
    with started(tmp_path, SIMULATE, "--ranks", 2, "--window", 0.1, "--endpoint", receiver.url) as simulation:
        receiver.wait_until(lambda: len({each.resource["process.pid"] for each in receiver.records("epoch")}) == 2)
        ranks = [Path("/proc", str(each.resource["process.pid"])) for each in receiver.records("epoch")]
        if number == signal.SIGINT:
            os.killpg(simulation.pid, number)
            ended = finish(simulation)
            assert (130, True) == (ended.status, " delivered, 0 on disk, 0 dropped" in ended.stdout)
        else:
            simulation.kill()
        wait_until(lambda: not any(rank.exists() for rank in ranks), "end of all ranks")
