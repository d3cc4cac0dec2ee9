"""Real jobs of two and four ranks: waits for other ranks are ``sync``, and the rules name the late rank only."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.scripts import Run
from tests.torch.ranks import waits_job
from tests.torch.ranks.late_jobs import KINDS, LATE, victim

from monitel.console.lateness import suspects

TOLERANCE = 0.005  # seconds


def run_ranks(module: str, ranks: int, folder: Path) -> None:
    """Run a module of this folder on several ranks, with a folder as its argument."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node", ranks)
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    Run(ROOT)(*launcher, "-m", f"tests.torch.ranks.{module}", folder, env=environment, timeout=240)


def test_late_rank_is_named_in_each_kind_of_job(tmp_path: Path) -> None:
    """With its stage and the delay, and nobody else; all gradients stay the same."""
    run_ranks("late_jobs", 4, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for kind, (_, stage) in KINDS.items():
        assert all(each[kind]["same"] for each in ranks), kind
        groups: dict[Any, dict[int, dict[str, float]]] = {}
        for rank, each in enumerate(ranks):
            groups.setdefault(each[kind]["group"], {})[rank] = each[kind]["stages"]
        found: list[Any] = [each for times in groups.values() for each in suspects(times) if each[0] > LATE / 2]
        assert [(pytest.approx(LATE, rel=1 / 3), victim(kind), stage)] == found, (kind, groups)


def test_waits(tmp_path: Path) -> None:
    """Each wait is ``sync``, and only once; waits of other threads are not."""
    run_ranks("waits_job", 2, tmp_path)
    found = json.loads((tmp_path / "waits.json").read_text())
    late = waits_job.LATE / 3
    for name in ("in another thread", "nothing"):
        sync, truth = found.pop(name)
        assert sync < late < truth, name
    # The job measures the whole operation, which on a loaded machine takes longer than the wait in it.
    assert {} == {name: times for name, times in found.items() if not (late < times[0] <= times[1] + TOLERANCE)}
