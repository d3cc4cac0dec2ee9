"""Processes of Lightning: SIGTERM ends a job as without monitel, nothing is lost, and each process has its rank."""

import os
import signal
from pathlib import Path

from tests.support.receiver import Receiver
from tests.support.scripts import Run, write_script
from tests.torch.ranks.terminated_job import compare

SLURM_JOB = """\
import logging, torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.fabric.plugins.environments import SLURMEnvironment
logging.getLogger("lightning").setLevel(logging.ERROR)
begin()
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        train()
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class Report(Callback):
    def on_exception(self, trainer, module, error):
        print(type(error).__name__, flush=True)
        end()

    def on_save_checkpoint(self, trainer, *_):
        print("handled", flush=True)

data = torch.utils.data.DataLoader(torch.zeros(10**5, 1))
callbacks = [Report(), ModelCheckpoint("checkpoints", filename="last", save_on_exception=True)]
trainer = Trainer(accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=False,
                  enable_model_summary=False, max_epochs=1, plugins=[SLURMEnvironment(auto_requeue=True)])
trainer.fit(Model(), data)
print("after", flush=True)
"""
SLURM = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    "SLURM_JOB_NAME": "train",
}


def test_lightning_on_slurm(tmp_path: Path, receiver: Receiver) -> None:
    """SIGUSR1 requeues the job and saves a checkpoint, and SIGTERM stops the job."""
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >>requeued\n')
    scontrol.chmod(0o755)
    variables = {**SLURM, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    compare(tmp_path, receiver, SLURM_JOB, signals=(signal.SIGUSR1, signal.SIGTERM), variables=variables)
    assert "requeue 1\n" == (tmp_path / "with/requeued").read_text()
    assert 1 == len(receiver.records("end"))


LIGHTNING = """\
import lightning, torch
from lightning.pytorch.demos.boring_classes import BoringModel

pipeline = monitel_otlp.configure(endpoint=sys.argv[-1], spool_dir="spool")

class Model(BoringModel):
    def on_fit_start(self):
        monitel.emit("training", true_rank=torch.distributed.get_rank())

if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )
    trainer.fit(Model())
    assert pipeline.force_flush(60)
"""


def test_process_of_lightning_has_its_rank(receiver: Receiver, tmp_path: Path) -> None:
    """Lightning starts the second process with variables; the first one has none yet, which a warning reports."""
    ended = Run(tmp_path)("-W", "ignore", write_script(tmp_path, LIGHTNING), receiver.url)
    records = receiver.records("training")
    assert {0: None, 1: 1} == {each.attributes["true_rank"]: each.resource.get("training.rank") for each in records}
    assert 2 == len({each.resource["service.instance.id"] for each in records})
    warning = "torch.distributed reports rank 0 of 2, but the telemetry of this process has no training.rank"
    assert (1, 1) == (ended.stderr.count(warning), ended.stderr.count("but the telemetry of this process has"))
