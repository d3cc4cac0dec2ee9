"""Misuse of the C extensions raises, and never ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from tests.support.paths import ROOT

import monitel

PACKAGE = Path(monitel.__file__).parent


def _extensions() -> list[str]:
    """Return the names of the extensions that were built, within the package."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob(f"*_c{EXTENSION_SUFFIXES[0]}"))
    return sorted(".".join((*path.parts[:-1], path.name.partition(".")[0])) for path in found)


EXTENSIONS = _extensions()


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the extensions, and return how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "MONITEL_NO_EXTENSIONS": "0"}
    command = [sys.executable, "-X", "faulthandler", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_process_survives_calls_at_random(name: str, seed: int, tmp_path: Path) -> None:
    """Thousands of calls of every function with wrong arguments, also on objects without __init__()."""
    ended = run(tmp_path, ROOT / "tests" / "nightly" / "extensions" / "attack.py", name, seed)
    last_call = (tmp_path / "last-call").read_text("utf-8", "replace").strip()
    assert (0, "done") == (ended.returncode, ended.stdout[-5:].strip()), f"{last_call}\n{ended.stderr}"
