"""Jobs and collectors that are killed leave journals that are delivered whole and once; thousands are each night."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.paths import ROOT


def campaign(*options: str, timeout: float = 280) -> None:
    """Run the campaign, which must find nothing."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.blackbox.campaign", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "problems: 0" in ended.stdout


@pytest.mark.parametrize(
    "options", [("--kills", "20", "--seed", "1"), ("--kills", "20", "--seed", "2"), ("--every", "1000")]
)
def test_forty_kills(options: tuple[str, ...]) -> None:
    """Jobs die at random, and collectors at each thousandth of the lines that they execute."""
    campaign(*options)
