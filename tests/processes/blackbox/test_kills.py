"""Jobs and collectors that are killed at random lose at most the last second, and deliver nothing half or twice."""

import subprocess
import sys

from tests.support.paths import ROOT


def test_twenty_kills() -> None:
    """Twenty jobs die within seconds, beside a backend with faults; a thousand do so each night."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.kills.campaign", "--kills", "20"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "problems: 0" in ended.stdout
