"""A backend, and scripts that train with a real framework and send to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def environment_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run on the CPU and offline, with run events, without variables of OpenTelemetry and of launchers."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name in _LAUNCHER:
            monkeypatch.delenv(name)
    variables = {"MONITEL_RUN_EVENTS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in {**variables, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
