"""Scripts in an interpreter without what another platform does not have; see ``reduced/sitecustomize.py``."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.scripts import Ended, Run

_REDUCED = Path(__file__).parent / "reduced"

RunOn = Callable[..., Ended]  # type of the fixture ``run_on``


@pytest.fixture
def run_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOn:
    """Return a function that runs Python in an empty folder, on ``"windows"`` or ``"macos"``; a warning is an error."""
    for name in ("MONITEL_BLACK_BOX_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)

    def run_on(platform: str, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Ended:
        own = {"MONITEL_TEST_PLATFORM": platform, "PYTHONPATH": str(_REDUCED), "HOME": str(tmp_path)}
        return run("-W", "error", *arguments, env={**own, **(env or {})}, returncode=returncode, fresh=True)

    return run_on


@pytest.fixture(params=["windows", "macos"])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
