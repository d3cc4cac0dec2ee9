"""A backend, and scripts that train with a real framework and send to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from exporters.otlp.tests.scripts import make_run, make_terminate

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from exporters.otlp.tests.receiver import Receiver
    from exporters.otlp.tests.scripts import Run, Terminate

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


@pytest.fixture
def events() -> Iterator[list[monitel.Event]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A backend that accepts everything."""
    from exporters.otlp.tests.receiver import Receiver  # requires the exporter

    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs Python in the folder of the test."""
    return make_run(tmp_path)


@pytest.fixture
def terminate(tmp_path: Path) -> Terminate:
    """Return a function that sends SIGTERM to a script."""
    return make_terminate(tmp_path)
