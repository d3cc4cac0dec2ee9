"""Events that torch code logs just before a flush of an exporter, or the exit, are exported."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch

import monitel.torch
import monitel_otlp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
_DEADLINE = 60.0


@pytest.mark.usefixtures("only_flushes_poll")
def test_force_flush_of_a_pipeline(receiver: Receiver, tmp_path: Path) -> None:
    """The events are delivered before it returns."""
    options: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path, "export_interval": 3600.0}
    with monitel_otlp.configure(**options) as pipeline, monitel.torch.instrument(waits=False, compilation=False):
        torch.monitor.log_event(torch.monitor.Event("checkpoint", MOMENT, {"bytes": 5}))
        torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], timedelta(hours=1), 1).add(0.5)
        assert pipeline.force_flush(_DEADLINE)
        assert ["checkpoint"] == receiver.record_names()
        assert [0.5] == receiver.values("torch.loss.mean")


EXIT = """\
import sys
from datetime import datetime
import torch, monitel.torch, monitel_otlp
monitel.torch.instrument(waits=False, compilation=False, stuck_after=None)
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
torch.monitor.log_event(torch.monitor.Event("checkpoint", datetime.now(), {"bytes": 5}))
"""


def test_exit(receiver: Receiver, run: Run) -> None:
    """Even if the pipeline was configured last."""
    run("-c", EXIT, receiver.url)
    assert ["checkpoint"] == receiver.record_names()
