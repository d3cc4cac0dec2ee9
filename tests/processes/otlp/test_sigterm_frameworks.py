"""SIGTERM to training frameworks: with monitel they end as without it, and nothing is lost.

Because of their size the frameworks are installed in a separate environment: see ``.ci/run``.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.receiver import Receiver

pytestmark = pytest.mark.frameworks


def needs(module: str) -> pytest.MarkDecorator:
    """Skip a test if a framework is missing."""
    missing = find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"pip install torch lightning transformers accelerate ({module})")


PRELUDE = """\
import os, signal, sys, threading, time

def ready():
    print("ready", flush=True)

def train():  # until SIGTERM, for some seconds at most
    global steps
    if steps == 3:
        ready()
    steps += 1
    if "with" in sys.argv:
        monitel.emit("step")
    signal.sigtimedwait([signal.SIGUSR2], 0.02)
    assert time.monotonic() < deadline, "SIGTERM has no effect"

steps, deadline = 0, time.monotonic() + 40

def begin():
    global loss, monitel, pipeline
    if "with" in sys.argv:
        import monitel, monitel_otlp
        pipeline = monitel_otlp.configure(endpoint=sys.argv[2], spool_dir="spool", export_interval=3600.0)
        loss = monitel.stat("loss", [monitel.COUNT], 3600.0)
        loss.add(1)
        monitel.emit("begin")

def end():
    print("end", flush=True)
    if "with" in sys.argv:
        monitel.emit("end")

"""


@dataclass(frozen=True)
class Ended:
    """Result of a run: exit status, words on stdout, stderr, files in its folder, and seconds from signal to end."""

    status: int
    stdout: list[str]
    stderr: str
    files: list[str]
    seconds: float


def run(
    folder: Path,
    script: str,
    *arguments: str,
    launcher: Sequence[str] = (),
    workers: int = 1,
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a script until each worker prints ``ready``, and send signals to the started program."""
    folder.mkdir()
    path = folder / "train.py"
    path.write_text(PRELUDE + script)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.update(variables or {})
    with (folder / "stderr").open("w") as stderr:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "start_new_session": True}
        command = [sys.executable, "-W", "ignore", *launcher, str(path), *arguments]
        process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines.count("ready") == workers:
                break
        begin = time.monotonic()
        for each in signals:
            process.send_signal(each)
            if each is not signals[-1]:
                lines.append(process.stdout.readline().strip())
        stdout, _ = process.communicate(timeout=60)
        seconds = time.monotonic() - begin
    finally:
        with process, suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    found = (folder / "stderr").read_text()
    assert workers == lines.count("ready"), found
    paths = [each.relative_to(folder) for each in folder.rglob("*") if each.is_file()]
    files = [str(each) for each in paths if "ledgers" not in each.parts]  # a run keeps its ledger
    files = sorted(re.sub(r"checkpoint-\d+", "checkpoint", each) for each in files)  # the step varies
    words = [line for line in [*lines, *stdout.splitlines()] if line.isalpha()]  # without the losses of a trainer
    return Ended(process.returncode, words, found, files, seconds)


def compare(folder: Path, receiver: Receiver, script: str, *, workers: int = 1, **options: Any) -> Ended:
    """Run a script with monitel and without; status, output, files and time must match, and everything must arrive."""
    options["workers"] = workers
    without = run(folder / "without", script, "without", receiver.url, **options)
    found = run(folder / "with", script, "with", receiver.url, **options)
    assert (without.status, without.files) == (found.status, found.files), found.stderr
    assert sorted(without.stdout) == sorted(found.stdout), found.stderr
    assert workers == len(receiver.records("begin"))
    assert [1] * workers == receiver.values("loss.count")
    assert found.seconds <= without.seconds + 3.0
    return found


INIT = """\
import torch.distributed
begin()
threading.Timer(1.0, ready).start()
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=0, world_size=2)
"""


@needs("torch")
def test_process_that_waits_for_a_peer(tmp_path: Path, receiver: Receiver) -> None:
    """While ``init_process_group`` waits in C++, everything arrives within two seconds, and the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = run(tmp_path / "with", INIT, "with", receiver.url, str(port))
    assert -signal.SIGTERM == ended.status, ended.stderr
    assert ended.seconds <= 2.0
    assert ["begin"] == receiver.record_names()
    assert [1] == receiver.values("loss.count")


DATA_LOADER = """\
import torch.utils.data
from torch.utils.data import DataLoader

begin()
for batch in DataLoader(range(10**6), num_workers=2, multiprocessing_context="fork"):
    train()
"""


@needs("torch")
def test_data_loader_with_workers(tmp_path: Path, receiver: Receiver) -> None:
    """Forked workers end with their parent."""
    found = compare(tmp_path, receiver, DATA_LOADER)
    assert -signal.SIGTERM == found.status


TORCHRUN = """\
import torch.distributed
torch.distributed.init_process_group("gloo")
begin()
if torch.distributed.get_rank() == 1:
    threading.Timer(1.0, ready).start()
    torch.distributed.barrier()
while True:
    train()
"""


@needs("torch")
def test_torchrun(tmp_path: Path, receiver: Receiver) -> None:
    """The agent forwards SIGTERM; a worker that runs Python and one that waits in a collective both deliver."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    compare(tmp_path, receiver, TORCHRUN, launcher=launcher, workers=2)


@needs("torch")
def test_torchrun_with_a_worker_that_fails(tmp_path: Path, receiver: Receiver) -> None:
    """The agent sends SIGTERM to the other worker, which waits in a collective."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = TORCHRUN.replace("while True", "while steps < 100") + "sys.exit(3)\n"
    found = compare(tmp_path, receiver, script, launcher=launcher, workers=2, signals=())
    assert 1 == found.status


LIGHTNING = """\
import logging, torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.fabric.plugins.environments import SLURMEnvironment
logging.getLogger("lightning").setLevel(logging.ERROR)
{before}
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
    def on_fit_start(self, *_):
        if {inside}:
            begin()

    def on_exception(self, trainer, module, error):
        print(type(error).__name__, flush=True)
        end()

    def on_save_checkpoint(self, trainer, *_):
        print("handled", flush=True)

data = torch.utils.data.DataLoader(torch.zeros(10**5, 1))
callbacks = [Report(), ModelCheckpoint("checkpoints", filename="last", save_on_exception=True)]
trainer = Trainer(accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=False,
                  enable_model_summary=False, max_epochs=1, plugins={plugins})
trainer.fit(Model(), data)
print("after", flush=True)
"""
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_NNODES": "1",
}
SLURM_PLUGIN = "[SLURMEnvironment(auto_requeue=True)]"
THEIRS = "signal.signal(signal.SIGTERM, lambda *_: print('theirs', flush=True))\n"


@needs("lightning")
@pytest.mark.parametrize("before", ["", THEIRS], ids=["alone", "theirs"])
@pytest.mark.parametrize("inside", [False, True], ids=["before", "inside"])
def test_lightning(tmp_path: Path, receiver: Receiver, before: str, inside: bool) -> None:
    """Lightning's handler stops the trainer after the batch, and all items recorded until the end arrive."""
    script = LIGHTNING.format(before=before + ("" if inside else "begin()\n"), inside=inside, plugins="None")
    found = compare(tmp_path, receiver, script)
    assert ("theirs" in found.stdout) is bool(before)
    assert 1 == len(receiver.records("end"))


@needs("lightning")
def test_lightning_on_slurm(tmp_path: Path, receiver: Receiver) -> None:
    """SIGUSR1 requeues the job and saves a checkpoint, and SIGTERM stops the job."""
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >>requeued\n')
    scontrol.chmod(0o755)
    variables = {**SLURM, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = LIGHTNING.format(before="begin()\n", inside=False, plugins=SLURM_PLUGIN)
    compare(tmp_path, receiver, script, signals=(signal.SIGUSR1, signal.SIGTERM), variables=variables)
    assert "requeue 1\n" == (tmp_path / "with/requeued").read_text()
    assert 1 == len(receiver.records("end"))


TRANSFORMERS = """\
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

class Report(TrainerCallback):
    def on_step_end(self, *_, **__):
        train()

    def on_train_end(self, *_, **__):
        end()

begin()
config = BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
item = {"input_ids": torch.zeros(2, dtype=torch.long), "labels": torch.tensor(0)}
arguments = TrainingArguments(
    "out", max_steps=10**5, per_device_train_batch_size=1, report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True, enable_jit_checkpoint=JIT, logging_strategy="no", save_only_model=True,
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=[item] * 100, callbacks=[Report()])
trainer.train()
print("after", flush=True)
"""


@needs("transformers")
@pytest.mark.parametrize("jit", [False, True])
def test_transformers(tmp_path: Path, receiver: Receiver, jit: bool) -> None:
    """SIGTERM ends the process; with ``enable_jit_checkpoint`` the trainer first saves a checkpoint."""
    found = compare(tmp_path, receiver, TRANSFORMERS.replace("JIT", str(jit)))
    assert (0 if jit else -signal.SIGTERM) == found.status
    assert jit is ("after" in found.stdout)
    assert int(jit) == len(receiver.records("end"))


ASYNCIO = """\
import asyncio

async def main():
    terminated = asyncio.Event()
    if "graceful" in "WHAT":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    if "executor" in "WHAT":
        await asyncio.to_thread(ready)
    else:
        ready()
    await terminated.wait()
    end()

begin()
asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["graceful", "plain", "graceful executor"])
def test_asyncio(tmp_path: Path, receiver: Receiver, what: str) -> None:
    """A handler of the event loop is called; without a handler SIGTERM ends the process while the loop waits."""
    found = compare(tmp_path, receiver, ASYNCIO.replace("WHAT", what))
    assert (0 if "graceful" in what else -signal.SIGTERM) == found.status
    assert int("graceful" in what) == len(receiver.records("end"))
