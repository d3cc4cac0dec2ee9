"""The adapters of transformers, Lightning and accelerate: failures, activities, several ranks, and signals."""

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from tests.support.checks import ledger
from tests.support.paths import EXAMPLES, ROOT
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, read_line, started, wait_until_ready
from tests.support.validity.names import stored_names
from tests.torch.known_work import activity, total
from tests.torch.trainers import small_jobs
from tests.torch.trainers.small_jobs import BATCH, COUNTING, ROWS, STEPS, TOKENS, TRAINERS, Truth

import monitel
import monitel.torch
import monitel_otlp
from monitel.integrations.lightning import MonitelCallback

pytestmark = pytest.mark.filterwarnings("ignore")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
JOB = Path(small_jobs.__file__)
each_trainer = pytest.mark.parametrize("name", TRAINERS)


def totals(receiver: Receiver, rank: int | None = None) -> dict[str, float]:
    """Return the last values of the step and the counters of work, of one rank."""
    found: dict[str, float] = {}
    for name in ("training.step", "training.steps", "training.samples", "training.tokens"):
        points = [each for each in receiver.points(name) if each.resource.get("training.rank") == rank]
        found |= {name: points[-1].value} if points else {}
    return found


def losses(receiver: Receiver, rank: int | None = None) -> list[int]:
    records = [each for each in receiver.records("run.log") if each.resource.get("training.rank") == rank]
    return [each.attributes["training.step"] for each in records if {"train_loss", "train.loss"} & each.body.keys()]


@each_trainer
def test_exception_in_training(name: str, receiver: Receiver) -> None:
    """The run has failed, the numbers before it arrive, and the batch that failed does not count."""
    truth = Truth(before_step=lambda step: 1 / (step != 4))
    pipeline = monitel_otlp.configure(endpoint=receiver.url, spool_dir="spool", export_interval=3600.0)
    with pytest.raises(ZeroDivisionError), pipeline:
        TRAINERS[name](truth)
    assert ["failed"] == [record.attributes["run.status"] for record in receiver.records("run.ended")]
    assert ([0, 1, 2] if name == "lightning" else [1, 2, 3]) == losses(receiver)
    assert 3 * BATCH == truth.samples
    if name in COUNTING:
        work = {"training.steps": 3, "training.samples": 3 * BATCH, "training.tokens": 3 * BATCH * TOKENS}
        assert {"training.step": 3, **work} == totals(receiver)


@each_trainer
def test_event_handler_that_raises_stops_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The training goes on to its end; each adapter's function is reported once."""
    truth = Truth()
    with monitel.register_event_handler(lambda _event: 1 / 0), caplog.at_level(logging.WARNING, "monitel"):
        TRAINERS[name](truth)
    assert (2 * ROWS, STEPS) == (truth.samples, len(truth.losses))
    messages = [each for each in caplog.messages if "further failures are not logged" in each]
    assert messages
    assert len(messages) == len({*messages})
    caplog.clear()  # the records have exceptions


@each_trainer
def test_evaluations_and_checkpoints_are_activities(name: str, events: list[monitel.Event]) -> None:
    """Beside ``instrument()``, which counts no step twice. Each checkpoint is one event, with its size."""
    truth = Truth()
    with monitel.torch.instrument(sources="-compilation,-failures", window_size=float("inf")):
        TRAINERS[name](truth)
    assert ({"evaluation"} if name in COUNTING else set()) == truth.activities
    assert (STEPS, STEPS) == (monitel.get_step(), monitel.counter("training.steps").total)
    saved = [event for event in events if event.name == "checkpoint.saved"]
    assert [5, 10] == [event.step for event in saved]
    for event in saved:
        path = Path(str(event.data["checkpoint.path"]))
        files = path.rglob("*") if path.is_dir() else [path]
        assert sum(each.stat().st_size for each in files if each.is_file()) == event.data["checkpoint.size"]
    book = ledger()
    assert book.activities["checkpoint.save"] > 0
    assert (name in COUNTING) == ("evaluation" in book.activities)
    assert "step" == activity()


def test_checkpoint_of_a_subclass_is_one_event(events: list[monitel.Event], tmp_path: Path) -> None:
    """Lightning's methods are wrapped in their classes, and one may call that of its base."""

    class Own(Trainer):  # type: ignore[misc]
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(*args, **kwargs)

    for kind in (Trainer, Own):
        trainer = kind(accelerator="cpu", max_epochs=0, logger=False, callbacks=[MonitelCallback()])
        trainer.fit(BoringModel())
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert 2 == [each.name for each in events].count("checkpoint.saved")


@pytest.mark.parametrize("name", COUNTING)
def test_evaluation_that_raises_ends(name: str) -> None:
    """The exception is raised unchanged, and the activity ends."""
    truth, error = Truth(), RuntimeError("no more")
    truth.evaluate = Mock(side_effect=error)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError) as raised:
        TRAINERS[name](truth)
    assert raised.value is error
    error.__traceback__ = None
    assert ledger().activities["evaluation"] > 0
    assert "step" == activity()


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_gradient_scaling_skips(fused: bool) -> None:
    """With accelerate's optimizer. Each attempt advances the step; a micro-batch does not."""
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    Accelerator(cpu=True)
    parameter, scaler = torch.nn.Parameter(torch.ones(2)), torch.amp.GradScaler("cpu")
    optimizer = AcceleratedOptimizer(torch.optim.AdamW([parameter], lr=0.1, fused=fused), scaler=scaler)
    applied = 0
    with monitel.torch.instrument():
        for number, gradient in enumerate((float("inf"), 1.0, float("nan"), 2.0, 0.5, float("inf")), 1):
            for syncs in (False, True):
                optimizer.gradient_state._set_sync_gradients(syncs)
                parameter.grad = scaler.scale(torch.full((2,), gradient))
                before = parameter.detach().clone()
                optimizer.step()
                applied += not torch.equal(before, parameter.detach())
                assert number - 1 + syncs == (monitel.get_step() or 0)
    assert (3, 3, 3) == (applied, total("steps"), total("steps.skipped"))


@each_trainer
def test_two_ranks(name: str, receiver: Receiver, run: Run) -> None:
    """Each rank counts its work, and the first one logs for the job; a checkpoint is one event."""
    printed = run(*TORCHRUN, JOB, name, receiver.url, timeout=240).stdout
    ranks = sorted(json.loads(line) for line in printed.splitlines() if line.startswith("["))
    assert [0, 1] == [rank for rank, _ in ranks]
    assert all(ROWS <= samples < ROWS + BATCH * 2 for _, samples in ranks)  # loaders fill up the last batch
    for rank, samples in ranks:
        work = {"training.steps": 6, "training.samples": samples, "training.tokens": samples * TOKENS}
        assert {"training.step": 6, **(work if name in COUNTING else {})} == totals(receiver, rank)
    assert ([*range(6)] if name == "lightning" else [*range(1, 7)]) == losses(receiver, 0)
    assert [] == losses(receiver, 1)
    assert [0] == [record.resource["training.rank"] for record in receiver.records("run.config")]
    saved = [each for each in receiver.records("checkpoint.saved") if each.resource["training.rank"] == 0]
    assert [5] == [each.attributes["training.step"] for each in saved if each.attributes["training.step"] == 5]
    assert ["completed"] * 2 == [record.attributes["run.status"] for record in receiver.records("run.ended")]


#: It trains until SIGTERM, for some seconds at most. A signal handler that prints may interrupt a print.
SLURM_JOB = """\
import logging, os, signal, sys, time, torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.fabric.plugins.environments import SLURMEnvironment
logging.getLogger("lightning").setLevel(logging.ERROR)
deadline = time.monotonic() + 100
if "with" in sys.argv:
    import monitel, monitel_otlp
    monitel_otlp.configure(endpoint=sys.argv[2], spool_dir="spool", export_interval=3600.0)
    monitel.stat("loss", [monitel.COUNT], 3600.0).add(1)

class Model(BoringModel):
    def training_step(self, batch, index):
        if index == 3:
            os.write(1, b"ready\\n")
        signal.sigtimedwait([signal.SIGUSR2], 0.02)
        assert time.monotonic() < deadline, "SIGTERM has no effect"
        return super().training_step(batch, index)

class Report(Callback):
    def on_exception(self, trainer, module, error):
        print(type(error).__name__, flush=True)
        if "with" in sys.argv:
            monitel.emit("end")

    def on_save_checkpoint(self, trainer, *_):
        print("handled", flush=True)

data = torch.utils.data.DataLoader(torch.zeros(10**5, 32))
callbacks = [Report(), ModelCheckpoint("checkpoints", filename="last", save_on_exception=True)]
trainer = Trainer(accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=False, max_epochs=1,
                  enable_model_summary=False, limit_val_batches=0, plugins=[SLURMEnvironment(auto_requeue=True)])
trainer.fit(Model(), data)
print("after", flush=True)
"""
SLURM = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    "SLURM_JOB_NAME": "train",
}


def test_lightning_on_slurm(tmp_path: Path, receiver: Receiver) -> None:
    """SIGUSR1 requeues the job and saves a checkpoint, and SIGTERM stops the job, as without monitel."""
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >>requeued\n')
    scontrol.chmod(0o755)
    variables, ends = {**SLURM, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}, []
    for which in ("without", "with"):
        place = tmp_path / which
        place.mkdir()
        (place / "train.py").write_text(SLURM_JOB)
        arguments = ("-W", "ignore", place / "train.py", which, receiver.url)
        with started(place, *arguments, env=variables, fresh=True) as process:
            wait_until_ready(process)
            process.send_signal(signal.SIGUSR1)
            saved = read_line(process)
            process.send_signal(signal.SIGTERM)
            ended = finish(process)
        paths = [each.relative_to(place) for each in place.rglob("*") if each.is_file()]
        files = sorted(str(each) for each in paths if "ledgers" not in each.parts)  # a run keeps its ledger
        ends.append((ended.status, saved, ended.stdout, files))
    assert ends[0] == ends[1], ended.stderr
    assert "requeue 1\n" == (tmp_path / "with/requeued").read_text()
    assert ([1], 1) == (receiver.values("loss.count"), len(receiver.records("end")))


def test_example_of_the_guide(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Its numbers are those of the Trainer, and the guide asks Prometheus for metrics that it sends."""
    job = (EXAMPLES / "train_transformers.py", "--steps", 200, "--run-dir", "run")
    run(*job, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}, timeout=240, fresh=True)
    history = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    for name, metric in (("loss", "train.loss"), ("eval_loss", "eval.loss")):
        assert [each[name] for each in history if name in each] == receiver.values(metric)
    work = {"training.step": 200, "training.samples": 200 * 16, "training.tokens": 200 * 16 * 32}
    assert work == {name: receiver.values(name)[-1] for name in work}
    rows = re.findall(r"^\| [^|]+\? [^|]*\| (.+) \|$", (ROOT / "docs/how-to/trainers.md").read_text(), re.MULTILINE)
    asked = {*re.findall(r"(?:train|eval)\w+", " ".join(rows).replace("by (training_rank)", ""))}
    assert 6 == len(asked & stored_names(each.message for each in receiver.of("metrics"))) == len(asked)
