"""Ranks without torchrun: processes that Lightning or torch.multiprocessing starts have a rank, or a warning is logged.

Because of their size the frameworks are installed in a separate environment: see ``.ci/run``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.scripts import Run, write_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Ended

LIGHTNING = """\
import lightning, torch
from lightning.pytorch.demos.boring_classes import BoringModel

BEFORE

class Model(BoringModel):
    def on_fit_start(self):
        IN_TRAINING
        monitel.emit("training", true_rank=torch.distributed.get_rank())

if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )
    trainer.fit(Model())
    assert pipeline.force_flush(60)
"""
SPAWN = """\
import torch, torch.distributed as dist

def work(rank, url):
    BEFORE
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
    IN_TRAINING
    monitel.emit("training", true_rank=dist.get_rank())
    assert pipeline.force_flush(60)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""
CONFIGURE = "global pipeline; pipeline = monitel_otlp.configure(endpoint=sys.argv[-1], spool_dir='spool')"
WARNING = "but the telemetry of this process has"


def train(folder: Path, receiver: Receiver, script: str, *, early: bool) -> Ended:
    """Run a script that calls ``configure()`` at its beginning, or after the process group was initialized."""
    script = script.replace("BEFORE", CONFIGURE.removeprefix("global pipeline; ") if early else "pass")
    script = script.replace("IN_TRAINING", "pass" if early else CONFIGURE)
    path = write_script(folder, script)
    return Run(folder)("-W", "ignore", path, receiver.url, env={"MASTER_ADDR": "127.0.0.1"})


def ranks(receiver: Receiver) -> dict[int, int | None]:
    """Return the rank in the resource by the rank in torch.distributed."""
    found = {each.attributes["true_rank"]: each.resource.get("training.rank") for each in receiver.records("training")}
    assert 2 == len({each.resource["service.instance.id"] for each in receiver.records("training")})
    return found


def test_process_of_lightning_has_its_rank(receiver: Receiver, tmp_path: Path) -> None:
    """Lightning starts the second process with variables; the first one has none yet, which a warning reports."""
    ended = train(tmp_path, receiver, LIGHTNING, early=True)
    assert {0: None, 1: 1} == ranks(receiver)
    assert 1 == ended.stderr.count(WARNING)
    assert f"torch.distributed reports rank 0 of 2, {WARNING} no training.rank" in ended.stderr


def test_late_configure_finds_each_rank(receiver: Receiver, tmp_path: Path) -> None:
    """After the process group was initialized each process knows its rank."""
    ended = train(tmp_path, receiver, SPAWN, early=False)
    assert ({0: 0, 1: 1}, 0) == (ranks(receiver), ended.stderr.count(WARNING))


def test_spawned_processes_without_a_rank_are_reported(receiver: Receiver, tmp_path: Path) -> None:
    """torch.multiprocessing sets no variables, so each process logs one warning."""
    ended = train(tmp_path, receiver, SPAWN, early=True)
    assert ({0: None, 1: None}, 2) == (ranks(receiver), ended.stderr.count(WARNING))
