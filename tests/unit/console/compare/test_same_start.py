"""Several runs without an id that have started in one second: their names are the same, and their numbers are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.console.compare.made_runs import SECOND, START

from monitel_otlp.compare import targets
from monitel_otlp.compare.targets import Places, find_run, label_of
from monitel_otlp.ledger.reading import StoredRun
from monitel_otlp.ledger.run_time import RunTime
from monitel_otlp.spool.folder import SpoolError
from monitel_otlp.values.run_values import Attempted

if TYPE_CHECKING:
    from pathlib import Path


def stored(pid: int, run: str = "") -> StoredRun:
    """Return a run of one process."""
    start_ns = START + pid
    run_time = RunTime(run, {"step": 9 * SECOND}, 9 * SECOND, 1, start_ns, start_ns + 9 * SECOND, True)
    return StoredRun(run_time, Attempted(f"20260102-030405-{pid}", 20, 30), start_ns, None)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Return a folder with three runs of the same second, one of them with an id."""
    runs = tmp_path / "runs"
    runs.mkdir()
    found = [stored(11), stored(12), stored(13, "run-7")]
    monkeypatch.setattr(targets, "read_stored", lambda folder: (found if folder == runs else [], []))
    return Places([runs], tmp_path / "boxes")


def test_start_of_several_runs_names_none_of_them(places: Places) -> None:
    """The message says what to give instead."""
    expected = "2 runs without an id have started at .*: give the spool, the black box or the process id of one of them"
    with pytest.raises(SpoolError, match=expected):
        find_run(label_of(stored(11)), places, [])


def test_folder_with_several_runs_of_one_second_is_not_one_run(places: Places) -> None:
    """Each of them is counted."""
    with pytest.raises(SpoolError, match="holds 3 runs"):
        find_run(str(places.roots[0]), places, [])


def test_run_with_an_id_is_named_by_it(places: Places) -> None:
    """Other runs of the same second do not matter."""
    assert "run-7" == find_run("run-7", places, []).label
