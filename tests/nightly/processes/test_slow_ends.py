"""Promises of processes that take seconds to show: a library that keeps the GIL, and a rank that is known late."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.processes.promises.jobs import replay
from tests.support.scripts import CONFIGURE, needs_c

from monitel_otlp.ledger.run_folder import LEDGERS
from monitel_otlp.values.file import VALUES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

RUN = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7"}
GIL = """\
monitel.emit("before")
import ctypes
ctypes.PyDLL(None).system(b"echo ready; exec sleep 60 >/dev/null 2>&1")
"""


@needs_c
@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL")
def test_library_that_keeps_the_gil_delays_sigterm_by_five_seconds(
    receiver: Receiver, terminate: Terminate, tmp_path: Path
) -> None:
    """No thread can deliver; the signal ends the process nevertheless, and the black box has the items."""
    terminate(CONFIGURE + GIL, receiver.url, within=8.0)
    assert [] == receiver.requests
    replay(tmp_path / "spool", receiver.url)
    assert ["before", "process.died"] == receiver.record_names()


WITHDRAWN = """\
import types
pipeline = monitel_otlp.configure(spool_dir="spool")
monitel.set_step(1)
time.sleep(1.5)
module = types.ModuleType("torch.distributed")
module.is_available = module.is_initialized = lambda: True
module.get_rank, module.get_world_size = lambda: int(sys.argv[1]), lambda: 2
sys.modules["torch.distributed"] = module
time.sleep(1.5)
"""


def test_other_rank_stores_no_values(train: Run, tmp_path: Path) -> None:
    """A rank that becomes known later gives the folder back, with its values."""
    train(WITHDRAWN, 1, env=RUN)
    assert [] == list((tmp_path / "spool" / LEDGERS).glob("*"))
    train(WITHDRAWN, 0, env=RUN)
    (path,) = (tmp_path / "spool" / LEDGERS).glob(f"*/{VALUES}")
    before = path.read_bytes()
    train(WITHDRAWN, 1, env=RUN)
    assert before == path.read_bytes()
