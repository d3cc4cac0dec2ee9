"""Fixture for scripts without set-up code."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.scripts import Ended, Instrument, Run


@pytest.fixture(autouse=True)
def resources_of_applications(request: pytest.FixtureRequest) -> None:
    """Let resources lack the name of the distribution: here they belong to the application."""
    request.applymarker(pytest.mark.invalid_output("the resource belongs to the application", "resource.distro"))


@pytest.fixture
def instrument(run: Run, tmp_path: Path) -> Instrument:
    """Return a function that runs a script without set-up code with ``opentelemetry-instrument``."""
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")

    def instrument(script: str, *, env: Mapping[str, str], timeout: float = 60) -> Ended:
        path = tmp_path / "train.py"
        path.write_text(script)
        program = Path(sys.executable).with_name("opentelemetry-instrument")
        usual = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics"}  # else its metrics are in each request
        return run(program, sys.executable, path, env={**usual, **env}, timeout=timeout)

    return instrument
