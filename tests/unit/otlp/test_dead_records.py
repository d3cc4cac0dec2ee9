"""The record of an ended process: who ends it."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.unit.console.recorded import KILLED, SECOND, START, recorded

from monitel.blackbox.death import Deaths, End
from monitel.blackbox.folder import FolderError
from monitel.blackbox.recovery import claim
from monitel_otlp.export.collector import collect
from monitel_otlp.export.records import take
from monitel_run.folder import make_run_folder, remove_run_folder


def test_end_that_a_parent_has_observed_is_in_the_event(own_boxes: Path, tmp_path: Path) -> None:
    """A box of a process whose end is still to be observed is left, by the parent and by everybody else, unlocked."""
    folder, announcements = make_run_folder()
    boxes, spool = own_boxes, tmp_path / "other"
    try:
        with recorded(boxes, tmp_path / "spool") as process:
            process.killed(run=folder)
            deaths = Deaths()
            with patch(f"{collect.__module__}.claim", wraps=claim) as claimed:
                assert 0 == collect(boxes, spool).boxes
                assert 0 == collect(boxes, spool, deaths=deaths, run=folder, observed_only=True).boxes
            assert boxes / KILLED not in [each.args[0] for each in claimed.call_args_list]  # else the lock is taken
            with pytest.raises(FolderError, match="is left to the monitel run"):
                take(boxes / KILLED, boxes)
            deaths.add(4194399, End(signal=9, time_ns=START + 20 * SECOND), "5")
            (death,) = collect(boxes, spool, deaths=deaths, run=folder, observed_only=True).deaths
        assert "SIGKILL" == death.event().attributes["process.exit.signal"]
        assert [] != [name for name in os.listdir(folder) if name.startswith("report-")]  # noqa: PTH208
    finally:
        os.close(announcements)
        remove_run_folder(folder)
