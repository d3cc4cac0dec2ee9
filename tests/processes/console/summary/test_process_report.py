"""Reports of real processes: their numbers, their files, and the lines that are not printed twice."""

from __future__ import annotations

import json
import os
import signal
import stat
from typing import TYPE_CHECKING

import pytest
from tests.support.hostile import refusing_url
from tests.support.scripts import CONFIGURE, READY
from tests.unit.console.summary.scripts import TRAIN

import monitel
from monitel_otlp.config.run_folder import VARIABLE
from monitel_otlp.summary.report import JobName, Total
from monitel_otlp.summary.report_folder import read_reports

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

    from monitel_otlp.summary.report import Report


def reports_in(folder: Path) -> list[Report]:
    """Return all reports, of which none may be damaged."""
    reports, problems = read_reports(folder)
    assert [] == problems
    return reports


#: What the job knows itself, in one line.
PRINT_TRUTH = """\
import json
pipeline.force_flush()
account = pipeline.account()["metrics"]
print(json.dumps([os.getpid(), os.getppid(), str(pipeline.spool_dir), account.recorded, account.delivered]))
"""


def test_report_has_the_numbers_of_the_process(folder: Path, receiver: Receiver, train: Run) -> None:
    """Steps, stages, ledger, account and names are those that the job knows itself."""
    names = {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "run-7"}
    env = {**names, "OTEL_SERVICE_NAME": "train", "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=team"}
    ended = train(CONFIGURE + TRAIN + "monitel.flush()\n" + PRINT_TRUTH, receiver.url, env=env)
    pid, _, spool_dir, recorded, delivered = json.loads(ended.stdout)
    [found] = reports_in(folder)
    assert (JobName("team", "train", "run-7"), 1, 5, 8) == (found.job, found.attempt, found.rank, found.world_size)
    assert (f"{pid}", spool_dir, False, False) == (
        *(found.owner.pid, found.spool_dir),
        *(found.offline, found.stored),
    )
    assert (3, 42, 38, 2, 40) == (found.first_step, found.last_step, found.steps, found.skipped, found.made)
    assert Total(40, 5.0, 1, 0.125) == found.step_time
    expected = {
        (stage, "first", device): Total(40, sum(range(3, 43)) * share, 1, 42 * share)
        for stage, share in (("data", 0.5), ("forward", 0.25))
        for device in (False, True)
    }
    assert expected == {(each.stage, each.group, each.device): each.total for each in found.stages}
    assert 0.2 <= found.activities["evaluation"] / 1e9 < 5
    assert {"startup", "step", "evaluation", "shutdown"} == {*found.activities}
    metrics = found.accounts["metrics"]
    assert recorded == delivered == metrics.recorded == metrics.delivered == 5
    assert ("completed", "") == (found.status, found.death)
    assert found.run_time is None


def test_rank_zero_reports_the_time_of_the_run(folder: Path, train: Run) -> None:
    """A job without a launcher is rank zero; its parent distinguishes it from other jobs."""
    ended = train("pipeline = monitel_otlp.configure(spool_dir='spool')\n" + TRAIN + PRINT_TRUTH)
    _, parent, spool_dir, *_ = json.loads(ended.stdout)
    [found] = reports_in(folder)
    assert found.run_time is not None
    assert {"startup", "step", "evaluation"} <= {*found.run_time.activities}
    assert sum(found.run_time.activities.values()) == found.run_time.elapsed_ns
    assert parent == os.getpid()
    assert found.job.launcher.split()[1] == f"{parent}"
    assert ("", None, None) == (found.job.run, found.rank, found.world_size)
    assert (spool_dir, True, True) == (found.spool_dir, found.offline, found.stored)


def test_exit_prints_nothing_that_the_summary_prints(folder: Path, receiver: Receiver, train: Run) -> None:
    """Each of many ranks would print its lines."""
    loud = train(CONFIGURE + TRAIN, receiver.url, env={VARIABLE: ""})
    assert ["monitel: exported", "monitel ledger:"] == [" ".join(each.split()[:2]) for each in loud.stderr.splitlines()]
    assert "" == train(CONFIGURE + TRAIN, receiver.url).stderr
    assert 1 == len(reports_in(folder))


def test_loss_is_printed_by_its_process(folder: Path, receiver: Receiver, train: Run) -> None:
    """The reason belongs to one rank."""
    lose = "pipeline._accounting.lose('logs', 'test', 3)\n"
    ended = train(CONFIGURE + TRAIN + lose, receiver.url)
    assert "dropped 3 (test 3)" in ended.stderr
    assert "monitel ledger" not in ended.stderr
    assert {"test": 3} == reports_in(folder)[0].accounts["logs"].dropped


def test_undelivered_items_are_in_the_report(folder: Path, train: Run) -> None:
    """Undelivered items are in the spool, from which ``monitel run`` delivers them."""
    train(CONFIGURE + TRAIN, refusing_url())
    [found] = reports_in(folder)
    assert (5, True, False) == (found.accounts["metrics"].on_disk, found.stored, found.offline)


def test_strange_names_fit_into_a_report(folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones are cut off, and of many only the first are kept; numbers beyond 64 bits are limited."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", 5000 * "s")
    pipeline = start(resource_attributes={"training.rank": "many", "training.world_size": -1, "training.attempt": 1.5})
    for number in range(500):
        stage = f"{number:04d} {5000 * chr(0x20AC)}"
        monitel.Stat("training.stage.duration", [monitel.SUM], 60.0, attributes={"training.stage": stage}).add(1e300)
    for number in range(3):
        with monitel.activity(f"{5000 * 'y'}{number}"):
            pass
    monitel.counter("training.steps").add(1e300)
    pipeline.shutdown()
    [found] = reports_in(folder)
    assert (200, 300) == (len(found.job.service), len(found.stages))
    assert {"startup", "shutdown", 200 * "y", "other"} >= {*found.activities} > {200 * "y"}
    assert (2**63 - 1, None, None, 0) == (found.steps, found.rank, found.world_size, found.attempt)


@pytest.mark.parametrize("damage", ["missing", "link", "open to others", "file", "abandoned"])
def test_unusable_folder_changes_nothing(folder: Path, receiver: Receiver, train: Run, damage: str) -> None:
    """The process ends as without ``monitel run``, and prints its lines."""
    other = folder.with_name("other")
    if damage == "open to others":
        folder.chmod(0o777)
    elif damage == "abandoned":  # monitel run was killed
        (folder / "processes").unlink()
        os.mkfifo(folder / "processes", 0o600)
    else:
        folder.rename(other)
        if damage == "link":
            folder.symlink_to("other")
        elif damage == "file":
            folder.touch()
    ended = train(CONFIGURE + TRAIN, receiver.url)
    if other.exists():
        folder.unlink(missing_ok=True)
        other.rename(folder)
    assert ["monitel:", "monitel"] == [each.split()[0] for each in ended.stderr.splitlines()]
    assert [] == [*folder.glob("*report*")]


@pytest.mark.parametrize(
    ("script", "status", "expected"),
    [("sys.exit(3)\n", 3, "failed"), ("raise KeyboardInterrupt\n", -signal.SIGINT, "interrupted")],
)
def test_status_is_that_of_the_run(folder: Path, train: Run, script: str, status: int, expected: str) -> None:
    """As ``run.ended`` has it."""
    train("monitel_otlp.configure()\n" + script, returncode=status, env={"MONITEL_RUN_EVENTS": "1"})
    assert [expected] == [each.status for each in reports_in(folder)]


def test_sigterm_leaves_a_report(folder: Path, receiver: Receiver, terminate: Terminate) -> None:
    """From the signal handler, with the windows that were open."""
    script = CONFIGURE.replace("configure(", "configure(sigterm=True, ") + TRAIN + READY
    terminate("import signal\n" + script + "signal.pause()\n", receiver.url)
    [found] = reports_in(folder)
    assert ("preempted", 42, Total(40, 5.0, 1, 0.125)) == (found.status, found.last_step, found.step_time)
    assert 5 == found.accounts["metrics"].delivered


def test_each_pipeline_of_a_process_has_a_report(folder: Path, start: Start) -> None:
    """As in a notebook; files of one process have different names."""
    for step in (1, 2):
        monitel.set_step(step)
        start().shutdown()
    assert [1, 2] == [each.last_step for each in reports_in(folder)]
    files = [*folder.glob("*report*")]
    assert {0o600} == {stat.S_IMODE(each.stat().st_mode) for each in files}
    assert 1 == len({each.name.rpartition("-")[0] for each in files})


def test_forked_child_has_its_own_report(folder: Path, receiver: Receiver, train: Run) -> None:
    """With its own numbers only."""
    fork = """\
if os.fork() == 0:
    Stat("training.step.duration", [COUNT], 60.0).add(1.5)
    monitel.flush()
    pipeline.shutdown()
    os._exit(0)
os.wait()
"""
    train("import warnings; warnings.simplefilter('ignore')\n" + CONFIGURE + TRAIN + fork, receiver.url)
    child, parent = reports_in(folder)
    assert (Total(1, 1.5, 1, 1.5), Total(40, 5.0, 1, 0.125)) == (child.step_time, parent.step_time)
    assert (1, 5) == (child.accounts["metrics"].recorded, parent.accounts["metrics"].recorded)
    assert child.job == parent.job._replace(launcher=child.job.launcher)
    assert child.job.launcher.split()[1] == parent.owner.pid
