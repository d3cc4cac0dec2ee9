"""Backward of two real ranks: the wait for the other rank's gradients is ``sync``, whatever backward begins with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.several_ranks.backward_job import DIES, LATE
from tests.torch.stages.several_ranks.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_backward(tmp_path: Path) -> None:
    """Each wait is in ``sync``, after errors and in other threads too; a rank that dies ends the wait of the others."""
    run_ranks("backward_job", 2, tmp_path, statuses=(0, DIES))
    found = json.loads((tmp_path / "backward.json").read_text())
    assert 13 == len(found)
    assert {} == {
        name: stages
        for name, stages in found.items()
        if not (stages.get("sync", 0) > LATE / 3 and stages["backward"] < LATE / 3)
    }
