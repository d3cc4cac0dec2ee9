"""Real jobs of two and four ranks: waits for other ranks are ``sync``, and the rules name the late rank, or nobody."""

from __future__ import annotations

import json
from pathlib import Path

from tests.torch.ranks.measured_kinds import measure
from tests.torch.ranks.ranks import run_ranks
from tests.torch.ranks.waits_job import LATE

TOLERANCE = 0.005  # seconds
CASES = {
    "DDP with buffers (BatchNorm)": "data",
    "DDP, checkpointed layers, reentrant": "backward, middle",
    "DDP with PowerSGD": "forward, middle",
    "DDP, accumulation with no_sync": "other",
    "DDP, compiled": "optimizer",
    "FSDP2 (fully_shard)": "backward, begin",
    "the same, by futures": "optimizer",
    "the same, in a compiled graph": "forward, begin",
    "independent trainings": "data",
    "tensor parallel in pairs, DDP over all": "backward, middle",
    "tensor parallel in pairs by DTensor, fully_shard over the pairs": "forward, middle",
    "pipeline, two unequal stages of two ranks": "data",
}


def test_kinds_of_jobs() -> None:
    """In each kind of job the rank that is late at one place is named, and nobody else; gradients stay the same.

    All kinds with all places: ``python -m tests.torch.ranks.measured_kinds``.
    """
    found, same = measure(CASES.items(), compared=True)
    assert {} == {case: each.suspects for case, each in found.items() if not each.is_right}
    assert {*CASES} == {kind for kind in same if same[kind]}


def test_waits(tmp_path: Path) -> None:
    """Each wait is ``sync``, and only once; waits of other threads are not."""
    run_ranks("waits_job", 2, tmp_path)
    found = json.loads((tmp_path / "waits.json").read_text())
    for name in ("in another thread", "nothing"):
        sync, truth = found.pop(name)
        assert sync < LATE / 3 < truth, name
    # The job measures the whole operation, which on a loaded machine takes longer than the wait in it.
    assert {} == {name: times for name, times in found.items() if not (LATE / 3 < times[0] <= times[1] + TOLERANCE)}
