"""The report of a killed process, from its black box: the same numbers as it would have reported itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import CONFIGURE
from tests.unit.console.summary.scripts import TRAIN

from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.collection.death import Deaths, End
from monitel_otlp.config.run_folder import remove_run_folder
from monitel_otlp.summary.report import Total
from monitel_otlp.summary.report_folder import read_reports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel_otlp.summary.report import Report

#: Makes the box, which notes the times of steps from then on.
BEGIN = CONFIGURE + "monitel.emit('begin')\npipeline.force_flush()\n"
#: Waits until a cut has been made, and dies.
DIE = """\
print(os.getpid(), flush=True)
time.sleep(1.5)
os.kill(os.getpid(), 9)
"""


def kill(train: Run, url: str, script: str) -> int:
    """Run a script that kills itself; return its process id."""
    return int(train(BEGIN + script + DIE, url, returncode=-signal.SIGKILL).stdout)


@pytest.fixture
def report_of_killed(
    folder: Path, receiver: Receiver, train: Run, tmp_path: Path, own_boxes: Path
) -> Callable[[str], Report]:
    """Return a function that runs a script, which kills itself, collects its box twice, and returns the report."""

    def report_of_killed(script: str) -> Report:
        deaths = Deaths()
        pid = kill(train, receiver.url, script)
        deaths.add(pid, End(signal=signal.SIGKILL, time_ns=time.time_ns()))
        found = []
        for boxes in (1, 0):
            collected = collect_boxes(own_boxes, fallback=tmp_path / "fallback", deaths=deaths, run=str(folder))
            assert ([], boxes) == (collected.problems, collected.boxes)
            reports, problems = read_reports(folder)
            assert [] == problems
            found.append(reports)
        assert found[0] == found[1]
        [report] = found[0]
        assert f"{pid}" == report.owner.pid
        return report

    return report_of_killed


EXPORT = "monitel.flush()\npipeline.force_flush()\n"


@pytest.mark.parametrize(
    ("script", "more", "windows"),
    [
        (TRAIN, 0, 5),
        (TRAIN + EXPORT + "step_time.add(0.5)\nfor each in stages.values():\n    each.add(1.0)\n", 1, 5),
        (TRAIN + EXPORT, 0, 0),
    ],
    ids=["open windows", "open and exported windows", "exported windows"],
)
def test_report_has_the_numbers_of_the_killed_process(
    report_of_killed: Callable[[str], Report], monkeypatch: pytest.MonkeyPatch, script: str, more: int, windows: int
) -> None:
    """Totals of exported and open windows, counters, steps, ledger and names; how it died, and what is left."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "run-7"}.items():
        monkeypatch.setenv(name, value)
    found = report_of_killed(script)
    assert ("run-7", 5, 8, 0) == (found.job.run, found.rank, found.world_size, found.attempt)
    assert ("killed by SIGKILL", "") == (found.death, found.status)
    assert (3, 42, 38, 2, 40) == (found.first_step, found.last_step, found.steps, found.skipped, found.made)
    assert Total(40 + more, 5.0 + 0.5 * more, 1 + more, 0.125 + 0.5 * more) == found.step_time
    expected = {
        (stage, "first", device): Total(40 + more, sum(range(3, 43)) * share + more, 1 + more, 42 * share + more)
        for stage, share in (("data", 0.5), ("forward", 0.25))
        for device in (False, True)
    }
    assert expected == {(each.stage, each.group, each.device): each.total for each in found.stages}
    assert found.activities["evaluation"] >= 2 * 10**8
    assert found.step_age_ns is not None
    assert 1.5 < found.step_age_ns / 1e9 < 15
    assert (True, False) == (found.stored, found.offline)
    on_disk = {signal: account.on_disk for signal, account in found.accounts.items()}
    assert {"metrics": windows, "logs": 1} == {"metrics": 0, **on_disk}
    assert "spool" == Path(found.spool_dir).parent.name


def test_steps_that_are_made_again_are_steps(report_of_killed: Callable[[str], Report]) -> None:
    """The counters show them as lost, which is about the whole run."""
    again = "from monitel import training_time\ntraining_time.repeat(10**12)\nmonitel.set_step(2)\ntime.sleep(0.3)\n"
    found = report_of_killed(again)
    assert "lost" not in found.activities
    assert found.activities["step"] >= 3 * 10**8


def test_run_that_has_ended_gets_no_report(folder: Path, receiver: Receiver, train: Run, own_boxes: Path) -> None:
    """The box is collected as usual."""
    kill(train, receiver.url, TRAIN)
    remove_run_folder(str(folder))
    collected = collect_boxes(own_boxes, fallback=folder)
    assert ([], 1, 1) == (collected.problems, collected.boxes, len(collected.deaths))
    assert not folder.exists()
