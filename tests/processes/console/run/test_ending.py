"""The work of ``monitel run`` after the end of its command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.blackbox.collection.dead_boxes import SPOOL, dead_process, make_box, spooled_deaths

from monitel_otlp.run.ending import Ending
from monitel_otlp.run.parent import Ended

KILLED = 9  # a status, as os.waitpid() returns it


@pytest.mark.parametrize(("start", "reason"), [("1", "signal"), ("2", "unknown")])
def test_end_is_that_of_the_command(tmp_path: Path, start: str, reason: str) -> None:
    """The box of an earlier process with the same id, which nobody has collected, gets another one."""
    owner = dead_process()
    make_box(Path(os.environ["MONITEL_BLACK_BOX_DIR"]), tmp_path / "runs" / SPOOL, owner=owner)
    Ending(["true"], tmp_path).finish(Ended(int(owner.pid), start, KILLED, 1, 2), [], recorded=False)
    (death,) = spooled_deaths(tmp_path / "runs")
    assert reason == death["process.exit.reason"]
