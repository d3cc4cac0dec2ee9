"""Ranks without torchrun: processes that Lightning starts have a rank, or a warning is logged.

Because of their size the frameworks are installed in a separate environment: see ``.ci/run``.
"""

from pathlib import Path

from tests.support.receiver import Receiver
from tests.support.scripts import Run, write_script

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
