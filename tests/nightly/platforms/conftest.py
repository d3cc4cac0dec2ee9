"""Scripts in an interpreter without what another platform does not have; see ``reduced/sitecustomize.py``."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

_REDUCED = Path(__file__).parent / "reduced"
_TIMEOUT = 120.0


RunOn = Callable[..., subprocess.CompletedProcess[str]]  # type of the fixture ``run_on``


@pytest.fixture
def run_on(tmp_path: Path) -> RunOn:
    """Return a function that runs Python in an empty folder, on ``"windows"`` or ``"macos"``; a warning is an error."""

    def run_on(
        platform: str, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0
    ) -> subprocess.CompletedProcess[str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
        own |= {"MONITEL_TEST_PLATFORM": platform, "PYTHONPATH": str(_REDUCED), "HOME": str(tmp_path)}
        own.pop("XDG_STATE_HOME", None)
        switch = {"MONITEL_NO_EXTENSIONS": os.environ.get("MONITEL_NO_EXTENSIONS", "0")}
        finished = subprocess.run(
            [sys.executable, "-W", "error", *map(str, arguments)],
            env={**own, **switch, "MONITEL_RUN_EVENTS": "0", **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
            timeout=_TIMEOUT,
        )
        assert returncode == finished.returncode, finished.stderr
        return finished

    return run_on


@pytest.fixture(params=["windows", "macos"])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
