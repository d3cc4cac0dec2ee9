"""Fixtures of trainings: each runs on the CPU, offline, and with run events."""

from importlib import import_module

import pytest


@pytest.fixture(scope="session", autouse=True)
def _trainers_are_loaded() -> None:
    """Load the trainers before a test looks at the state of the process, which they change."""
    for name in ("lightning.pytorch", "transformers", "accelerate"):
        import_module(name)


@pytest.fixture(autouse=True)
def environment_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MONITEL_RUN_EVENTS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
