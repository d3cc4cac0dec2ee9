"""Skips the tests here where a trainer is missing; each training runs on the CPU, offline, and with run events."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_MISSING = [name for name in ("lightning", "transformers", "accelerate") if find_spec(name) is None]


class _Skipped(pytest.Module):
    """A file that cannot be imported, because it imports a trainer."""

    def collect(self) -> list[Any]:
        """Skip the file."""
        pytest.skip(f"not installed: {', '.join(_MISSING)}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Skip each file, with the reason, where a trainer is missing."""
    return _Skipped.from_parent(parent, path=module_path) if _MISSING else None


@pytest.fixture(scope="session", autouse=True)
def _trainers_are_loaded() -> None:
    """Load the trainers before a test looks at the state of the process, which they change."""
    for name in ("lightning.pytorch", "transformers", "accelerate"):
        import_module(name)


@pytest.fixture(autouse=True)
def environment_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the CPU and offline, with run events."""
    variables = {"MONITEL_RUN_EVENTS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
