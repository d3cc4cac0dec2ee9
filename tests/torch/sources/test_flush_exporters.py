"""Events that torch code logs just before a flush of an exporter, the end of its block, or the exit are exported."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

import monitel.torch
import monitel_otlp
import monitel_tensorboard

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
OTHERS: dict[str, Any] = {"waits": False, "compilation": False, "stuck_after": None}
_DEADLINE = 60.0


def log() -> None:
    """Log an event through torch.monitor, and close a window of a Stat of torch."""
    torch.monitor.log_event(torch.monitor.Event("checkpoint", MOMENT, {"bytes": 5}))
    torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], timedelta(hours=1), 1).add(0.5)


def received(receiver: Receiver) -> tuple[list[str], list[float]]:
    """Return the names of the received records, and the points of the Stat."""
    return [each.name for each in receiver.records()], [each.value for each in receiver.points("torch.loss.mean")]


@pytest.mark.usefixtures("only_flushes_poll")
def test_force_flush_of_a_pipeline(receiver: Receiver, tmp_path: Path) -> None:
    """The events are delivered before it returns."""
    options: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path, "export_interval": 3600.0}
    with monitel_otlp.configure(**options) as pipeline, monitel.torch.instrument(**OTHERS):
        log()
        assert pipeline.force_flush(_DEADLINE)
        assert (["checkpoint"], [0.5]) == received(receiver)


def scalars(folder: Path) -> list[str]:
    """Return the tags that TensorBoard reads."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [tag for tag in reader.Tags()["scalars"] if not tag.startswith("training.")]


@pytest.mark.usefixtures("only_flushes_poll")
def test_flush_of_tensorboard(tmp_path: Path) -> None:
    """The events are written before it returns."""
    with monitel_tensorboard.install(tmp_path) as installed, monitel.torch.instrument(**OTHERS):
        log()
        assert installed.writer.flush(_DEADLINE)
        assert {"checkpoint/bytes", "torch.loss.mean"} == set(scalars(tmp_path))


EXIT = """\
import sys
from datetime import datetime
import torch, monitel, monitel.torch, monitel_otlp
def configure():
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
def instrument():
    monitel.torch.instrument(waits=False, compilation=False, stuck_after=None)
def hang(event):
    import threading
    if event.name == "checkpoint":
        threading.Event().wait()
for name in sys.argv[2].split():
    globals()[name]()
if "hang" in sys.argv:
    monitel.register_event_handler(hang)
print("ready", flush=True)
torch.monitor.log_event(torch.monitor.Event("checkpoint", datetime.now(), {"bytes": 5}))
"""


def run(folder: Path, *arguments: str) -> None:
    """Run the script to its end."""
    (folder / "script.py").write_text(EXIT, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "script.py", *arguments],
        env={**os.environ, "MONITEL_RUN_EVENTS": "0"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        assert 0 == process.wait(60)


def test_exit(receiver: Receiver, tmp_path: Path) -> None:
    """Even if the pipeline was configured last."""
    run(tmp_path, receiver.url, "instrument configure")
    assert ["checkpoint"] == received(receiver)[0]
