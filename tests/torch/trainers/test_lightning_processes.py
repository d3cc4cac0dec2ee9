"""Trainings by Lightning in other processes: several ranks, resumed and stopped runs, and both of its packages."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("lightning")

from lightning.pytorch import Trainer
from tests.torch.trainers import lightning_job
from tests.torch.trainers.arrivals import numbers, status, totals, totals_of_processes
from tests.torch.trainers.lightning_job import BATCH, QUIET, ROWS, TOKENS, Model, Rows, batches

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

JOB = Path(lightning_job.__file__)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def lines(stdout: str) -> list[dict[str, int]]:
    """Return the numbers that jobs have printed, by rank."""
    printed = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    return sorted(printed, key=lambda each: int(each["rank"]))


def work(printed: dict[str, int], steps: int) -> dict[str, float]:
    """Return what the counters of a process must be after so many steps."""
    samples = printed["samples"]
    counters = {"training.steps": steps, "training.samples": samples, "training.tokens": TOKENS * samples}
    return {"training.step": printed["step"], **counters}


@pytest.mark.parametrize("launcher", [TORCHRUN, ()], ids=["torchrun", "lightning"])
def test_two_ranks(receiver: Receiver, run: Run, launcher: tuple[str, ...]) -> None:
    """Each rank counts its work, and rank zero logs the numbers and the checkpoints."""
    options = {"trainer_options": {"strategy": "ddp", "devices": 2}}
    printed = lines(run(*launcher, JOB, receiver.url, json.dumps(options)).stdout)
    assert [(0, 8, ROWS), (1, 8, ROWS)] == [(each["rank"], each["step"], each["samples"]) for each in printed]
    assert [work(each, 8) for each in printed] == totals_of_processes(receiver)
    assert [*range(8)] == [step for step, _ in numbers(receiver)]
    (config,) = receiver.records("run.config")
    process = config.resource["service.instance.id"]
    assert {process} == {record.resource["service.instance.id"] for record in receiver.records("run.log")}
    saved = receiver.records("checkpoint.saved")
    assert [(process, step) for step in (4, 8)] == [
        (record.resource["service.instance.id"], record.attributes["training.step"]) for record in saved
    ]
    assert ["completed"] * 2 == status(receiver)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_resumed_run(receiver: Receiver, run: Run, tmp_path: Path, package: str) -> None:
    """Steps go on after those of the checkpoint, with both names of Lightning; counters start at zero."""
    trainer = Trainer(**{**QUIET, "max_epochs": 1}, logger=False, default_root_dir=tmp_path)
    trainer.fit(Model(), batches(Rows()))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    options = {"trainer_options": {"max_epochs": 3}, "ckpt_path": "last.ckpt"}
    (printed,) = lines(run(JOB, receiver.url, json.dumps(options), env={"LIGHTNING": package}).stdout)
    assert (21, 2 * ROWS) == (printed["step"], printed["samples"])
    assert work(printed, 14) == totals(receiver)
    assert [*range(7, 21)] == [step for step, _ in numbers(receiver)]
    assert ["completed"] == status(receiver)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, (0, 5, "preempted")), (signal.SIGINT, (1, 4, "interrupted"))]
)
def test_stopped_run(receiver: Receiver, run: Run, number: int, expected: tuple[int, int, str]) -> None:
    """After SIGTERM the batch ends, after SIGINT it does not; everything that was recorded until then arrives."""
    code, steps, ended = expected
    options = {"trainer_options": {}, "signal_at": (number, 4)}
    (printed,) = lines(run(JOB, receiver.url, json.dumps(options), returncode=code).stdout)
    assert (steps, steps * BATCH) == (printed["step"], printed["samples"])
    assert work(printed, steps) == totals(receiver)
    assert [*range(steps)] == [step for step, _ in numbers(receiver)]
    assert [ended] == status(receiver)


BOTH_BEFORE = """
import lightning.pytorch, pytorch_lightning
from monitel.integrations.lightning import MonitelCallback, MonitelLogger
for package in (lightning.pytorch, pytorch_lightning):
    assert issubclass(MonitelCallback, package.Callback), package
    assert issubclass(MonitelLogger, package.loggers.Logger), package
"""
OTHER_AFTER = """
from monitel.integrations.lightning import MonitelCallback, MonitelLogger
import monitel, pytorch_lightning
from pytorch_lightning.demos.boring_classes import BoringModel
assert not issubclass(MonitelCallback, pytorch_lightning.Callback)
trainer = pytorch_lightning.Trainer(
    accelerator="cpu", max_steps=3, limit_val_batches=0, logger=MonitelLogger(), callbacks=[MonitelCallback()]
)
trainer.fit(BoringModel())
assert (3, 3) == (monitel.get_step(), monitel.counter("training.steps").total)
"""


@pytest.mark.parametrize("script", [BOTH_BEFORE, OTHER_AFTER], ids=["both before", "other after"])
def test_both_packages_in_one_process(run: Run, script: str) -> None:
    """The classes extend those of the packages that are imported before, and work with the other one."""
    run("-W", "ignore", "-c", script)
