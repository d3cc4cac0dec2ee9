"""Real jobs of four ranks, of every kind: the rules name the late rank and its stage, or nobody."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.several_ranks.measured_kinds import measure

pytestmark = pytest.mark.torch


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

    All kinds with all places: ``python -m tests.torch.stages.several_ranks.measured_kinds``.
    """
    found, same = measure(CASES.items(), compared=True)
    assert {} == {case: each.suspects for case, each in found.items() if not each.is_right}
    assert {*CASES} == {kind for kind in same if same[kind]}
