"""Real jobs of four ranks: the rules name the late rank only."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.scripts import Run
from tests.torch.ranks.late_jobs import KINDS, LATE, victim

from monitel.console.lateness import suspects


def test_late_rank_is_named_in_each_kind_of_job(tmp_path: Path) -> None:
    """With its stage and the delay, and nobody else; all gradients stay the same."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1", "--nproc-per-node", "4")
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    Run(ROOT)(*launcher, "-m", "tests.torch.ranks.late_jobs", tmp_path, env=environment, timeout=240)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for kind, (_, stage) in KINDS.items():
        assert all(each[kind]["same"] for each in ranks), kind
        groups: dict[Any, dict[int, dict[str, float]]] = {}
        for rank, each in enumerate(ranks):
            groups.setdefault(each[kind]["group"], {})[rank] = each[kind]["stages"]
        found: list[Any] = [each for times in groups.values() for each in suspects(times) if each[0] > LATE / 2]
        assert [(pytest.approx(LATE, rel=1 / 3), victim(kind), stage)] == found, (kind, groups)
