"""The summary of real jobs of torchrun: the late rank, its stage and milliseconds, the steps, and a killed rank."""

from __future__ import annotations

import io
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.ledger.screen import Screen
from monitel_otlp.summary.lines import summary_lines
from monitel_otlp.summary.printed import print_summary
from monitel_otlp.summary.report_folder import read_reports

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node")
EXAMPLE = Path(__file__).parents[4] / "docs/examples/train_ddp.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ATTEMPTS = 3  # other programs on the machine make ranks late, too


def test_late_rank_is_named(folder: Path, receiver: Receiver, run: Run) -> None:
    """Rank, stage and milliseconds are those that the job was given, to within 10 %, and the steps its own count."""
    command = (*TORCHRUN, 4, EXAMPLE, "--steps", 60, "--late", "data:2:30ms")
    for attempt in range(1, ATTEMPTS + 1):
        run(*command, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **ONE_THREAD}, timeout=120)
        reports, problems = read_reports(folder)
        lines = summary_lines(reports, problems, Screen(1000))
        first = next(line for line in lines if line.startswith("  late"))
        found = re.search(r"rank 2, data, ([0-9.]+) ms a step \((\d+) % of the cycle\)", first)
        verdict = next(line for line in lines if line.startswith("  verdict"))
        named = f"late rank: rank 2 took {found and found[1]} ms longer than the others in data" in verdict
        if found is not None and named and float(found[1]) == pytest.approx(30, rel=0.1):
            assert 10 < int(found[2]) < 30
            break
        assert attempt < ATTEMPTS, lines
        for each in folder.glob("report-*"):
            each.unlink()
    assert (4, {60}) == (len(reports), {each.made for each in reports})
    assert lines[0].startswith("monitel run: train-ddp, 4 ranks, 60 steps, ")
    assert not [line for line in lines if line.startswith(("  died", "  ended", "  lost", "  on disk"))]


#: Rank 1 is killed after its sixth step; the other rank waits for it until torchrun ends it.
KILLED = """\
import os, sys, time, torch
import torch.distributed as dist
import monitel, monitel.torch, monitel_otlp
monitel_otlp.configure(service_name="killed", sigterm=True)
monitel.torch.instrument(window_size=1.0)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 100):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.25)
    if step == 6 and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
"""


def test_killed_rank_appears(folder: Path, receiver: Receiver, run: Run, tmp_path: Path, own_boxes: Path) -> None:
    """With its last step. The other rank is a consequence: torchrun has ended it, or its collective has failed."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    run(
        *TORCHRUN, 2, script, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **ONE_THREAD}, returncode=1, timeout=120
    )
    collect_boxes(own_boxes, fallback=tmp_path / "fallback", run=str(folder))
    reports, problems = read_reports(folder)
    assert [] == problems
    stream = io.StringIO()
    deaths = {report.owner: ("killed by SIGKILL", report.time_ns) for report in reports if report.death}
    print_summary(folder, stream, cause=deaths.get)
    sys.stdout.write(stream.getvalue())
    text = re.sub(r"\s+", " ", stream.getvalue())
    assert re.search(r"killed, 2 ranks, 6 steps,.* verdict dead: rank 1 killed by SIGKILL at step 6", text)
    assert re.search(r"died rank 1 killed by SIGKILL at step 6, \S+ m?s after its last step; monitel autopsy \d+", text)
    assert re.search("ended rank 0 (preempted|failed)", text)
