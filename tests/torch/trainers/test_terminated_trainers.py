"""SIGTERM to training frameworks: with monitel they end as without it, and nothing is lost."""

import os
import signal
from pathlib import Path

from tests.support.receiver import Receiver
from tests.torch.ranks.terminated_job import compare

LIGHTNING = """\
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
    compare(tmp_path, receiver, LIGHTNING, signals=(signal.SIGUSR1, signal.SIGTERM), variables=variables)
    assert "requeue 1\n" == (tmp_path / "with/requeued").read_text()
    assert 1 == len(receiver.records("end"))
