"""Promises of processes that take seconds to show: a library that keeps the GIL, and a rank that is known late."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.processes.promises.jobs import replay
from tests.support.scripts import CONFIGURE, needs_c

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Terminate

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
