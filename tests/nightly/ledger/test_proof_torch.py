"""PyTorch jobs with a known duration in each activity: the run's ledger and the metrics agree with their own notes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.paths import ROOT
from tests.unit.ledger import notes
from tests.unit.ledger.notes import Span

from monitel_otlp.ledger.reading import read_runs

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node")
#: Notes the start of a process, which Python then replaces.
LAUNCH = """\
read up _ < /proc/uptime
now=${up%.*}${up#*.}0000000
echo "[\\"start\\", $now, $now]" >> notes-$RANK
exec "$@"
"""


def spans(noted: list[Span]) -> list[Span]:
    """Return the activities of a rank, by its notes."""
    moments = [notes.moments(noted, name) for name in ("start", "first step", "stuck from", "exit", "end")]
    ((started,), (first_step,), (stuck,), (exited,), (end,)) = moments
    (wait,) = (each for each in noted if each.name == "wait")
    assert wait.begin_ns + 1_200_000_000 <= stuck <= wait.end_ns
    return [
        Span("startup", started, first_step),
        Span("step", first_step, exited),
        Span("stuck", stuck, wait.end_ns),
        Span("shutdown", exited, end),
        *(each for each in noted if each.ns and each.name != "wait" and not each.name.startswith("slept ")),
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_job_with_every_activity(receiver: Receiver, run: Run, tmp_path: Path, ranks: int) -> None:
    """Each rank's metrics, and the ledger that rank zero keeps of the run."""
    (tmp_path / "launch").write_text(LAUNCH)
    job = Path(__file__).with_name("torch_job.py")
    command = ("sh", tmp_path / "launch", sys.executable, job, receiver.url, 0.7)
    run(*TORCHRUN, ranks, *command, env={"PYTHONPATH": str(ROOT), "MONITEL_RUN_EVENTS": "1"}, timeout=120)
    noted = [notes.read(tmp_path / f"notes-{rank}") for rank in range(ranks)]
    joining = [next(each for each in of_rank if each.name == "init") for of_rank in noted]
    assert joining[0].end_ns >= joining[-1].begin_ns  # rank zero has waited for the other one
    ((stored,), _) = read_runs(tmp_path / "spool")
    for rank in range(ranks):
        truth = notes.durations(spans(noted[rank]))
        found = {
            point.attributes["training.activity"]: round(1e9 * point.value)
            for point in receiver.points("training.time")
            if point.resource["training.rank"] == rank
        }
        notes.check(found, truth, {})
        if rank == 0:
            notes.check(stored.activities, truth, notes.slept(noted[0]))
