"""Jobs and collectors that are killed at random lose at most the last second, and deliver nothing half or twice."""

import subprocess
import sys

import pytest
from tests.support.paths import ROOT

_COMMAND = [sys.executable, "-W", "ignore", "-m", "tests.nightly.kills.campaign", "--kills", "20"]


def campaign(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_COMMAND, *options], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills(seed: int) -> None:
    """Twenty jobs die within seconds, beside a backend with faults; a thousand do so each night."""
    ended = campaign("--seed", str(seed))
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "problems: 0" in ended.stdout
