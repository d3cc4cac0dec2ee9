"""Misuse of the C extension raises, and never ends the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scripts import Run, needs_c


@needs_c
@pytest.mark.parametrize("seed", [1, 2])
def test_process_survives_calls_at_random(run: Run, tmp_path: Path, seed: int) -> None:
    """Thousands of calls of every function with wrong arguments, also on objects without __init__()."""
    script = Path(__file__).with_name("attack.py")
    ended = run("-X", "faulthandler", script, seed, env={"PYTHONWARNINGS": "ignore"})
    assert "done" == ended.stdout[-5:].strip(), (tmp_path / "last-call").read_text("utf-8", "replace").strip()
