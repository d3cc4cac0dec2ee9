"""Runs on disks: file systems that hang, processes with one process id, and runs that started in one second."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.compare.made_runs import SECOND, START

from monitel.blackbox.folder import FolderError
from monitel.console.compare import targets
from monitel.console.compare.assembly import assemble
from monitel.console.compare.disks import Disks
from monitel.console.compare.evidence import Process
from monitel.console.compare.run import Number
from monitel.console.compare.targets import Places, find_run, label_of
from monitel.console.ledger.reading import StoredRun
from monitel.console.ledger.shares import RunTime
from monitel.console.values.run_values import Attempted, Progress, RunValues, Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hanging() -> Iterator[Event]:
    """An event for which reads wait until the end of the test."""
    event = Event()
    yield event
    event.set()


def test_ledgers_that_hang_are_left_out_and_named(
    hanging: Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is unknown then, and the reason is among the problems."""
    monkeypatch.setattr(targets, "read_stored", lambda _: hanging.wait())
    problems: list[str] = []
    with pytest.raises(FolderError, match="there is no run"):
        find_run("run-7", Places([tmp_path / "runs"], tmp_path / "boxes", Disks(0.2)), problems)
    assert any("has not answered within 0.2 s" in each for each in problems)


@pytest.fixture
def now_ns() -> int:
    """Return the time of the last heartbeat."""
    return time.time_ns()


def restarted(now_ns: int) -> StoredRun:
    """Return a run whose second attempt has run for 60 s with the process id 1, up to step 30."""
    values = RunValues(
        "run-a",
        "second-1",
        time_ns=now_ns - 20 * SECOND,
        progress=Progress(10, 30),
        before=Progress(40, 39),
        values=(Value("samples", (), "", 400, now_ns - 20 * SECOND, total=True, before=320),),
    )
    spent = {"step": 100 * SECOND}
    run_time = RunTime("run-a", spent, 100 * SECOND, 2, now_ns - 100 * SECOND, now_ns, False)
    return StoredRun(run_time, Attempted("second-1", 20, 30), now_ns - 60 * SECOND, values)


def process(last_ns: int, step: int, samples: int, **changes: Any) -> Process:
    """Return a process with the id 1."""
    attributes = {"process.pid": 1, "training.run.id": "run-a", **changes.pop("attributes", {})}
    found = Process(attributes, started_ns=last_ns - 30 * SECOND, last_ns=last_ns, **changes)
    found.totals["samples", ()] = last_ns, Number(samples, "", True)
    found.add_step(step, last_ns)
    return found


def test_death_of_an_earlier_attempt_with_the_same_id_is_not_the_outcome(now_ns: int) -> None:
    """The run is running while its second attempt runs, and its steps and totals are those of that attempt."""
    first = process(now_ns - 70 * SECOND, 39, 320, death="killed by SIGKILL")
    run = assemble("run-a", "", restarted(now_ns), [first])
    assert ("running", 50, 30) == (run.outcome, run.steps, run.last_step)
    assert 400 == run.numbers["samples", ()].value


def test_other_rank_with_the_same_id_is_not_the_attempt(now_ns: int) -> None:
    """In containers the other ranks have the id 1 as well: the death of one is named beside the state of rank zero."""
    other = process(now_ns, 33, 96, death="killed by SIGKILL", attributes={"training.rank": 1})
    zero = process(now_ns, 31, 88, attributes={"training.rank": 0})
    run = assemble("run-a", "", restarted(now_ns), [zero, other])
    assert ("running; rank 1 killed by SIGKILL", 31) == (run.outcome, run.last_step)


def stored(pid: int, run: str = "") -> StoredRun:
    """Return a run of one process."""
    start_ns = START + pid
    run_time = RunTime(run, {"step": 9 * SECOND}, 9 * SECOND, 1, start_ns, start_ns + 9 * SECOND, True)
    return StoredRun(run_time, Attempted(f"20260102-030405-{pid}", 20, 30), start_ns, None)


def test_start_of_several_runs_names_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to give instead; a folder with several runs is not one run; an id names its run."""
    runs = tmp_path / "runs"
    runs.mkdir()
    found = [stored(11), stored(12), stored(13, "run-7")]
    monkeypatch.setattr(targets, "read_stored", lambda folder: (found if folder == runs else [], []))
    places = Places([runs], tmp_path / "boxes")
    expected = "2 runs without an id have started at .*: give the spool, the black box or the process id of one of them"
    with pytest.raises(FolderError, match=expected):
        find_run(label_of(stored(11)), places, [])
    with pytest.raises(FolderError, match="holds 3 runs"):
        find_run(str(runs), places, [])
    assert "run-7" == find_run("run-7", places, []).label
