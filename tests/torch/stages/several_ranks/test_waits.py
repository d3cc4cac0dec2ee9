"""Waits of two real ranks for each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.several_ranks.ranks import run_ranks
from tests.torch.stages.several_ranks.waits_job import LATE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

TOLERANCE = 0.005  # seconds


def test_waits(tmp_path: Path) -> None:
    """Each wait is ``sync``, and only once; waits of other threads are not."""
    run_ranks("waits_job", 2, tmp_path)
    found = json.loads((tmp_path / "waits.json").read_text())
    for name in ("in another thread", "nothing"):
        sync, truth = found.pop(name)
        assert sync < LATE / 3 < truth, name
    # The job measures the whole operation, which on a loaded machine takes longer than the wait in it.
    assert {} == {name: times for name, times in found.items() if not (LATE / 3 < times[0] <= times[1] + TOLERANCE)}
