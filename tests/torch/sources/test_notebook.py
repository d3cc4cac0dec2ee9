"""Exceptions of notebook cells as events, with a real IPython shell in a process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Run

ERROR = 17  # of OTLP

#: Runs each cell of the argument, a list as JSON, and prints what IPython prints.
SHELL = """\
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
options = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
shell = InteractiveShell.instance(config=Config(options))
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell)
"""
CONFIGURE = """\
import sys, threading
import torch, monitel, monitel.torch, monitel_otlp
sys.argv = ["train.py"]
pipeline = monitel_otlp.configure(endpoint=URL, spool_dir="spool", export_interval=3600.0)
"""
INSTRUMENT = "instrumentation = monitel.torch.instrument(sources='-waits,-compilation')"


@pytest.fixture
def shell(receiver: Receiver, run: Run, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs cells with a pipeline that sends to the receiver, and returns the output."""

    def shell(*cells: str) -> str:
        configure = CONFIGURE.replace("URL", repr(receiver.url))
        ended = run("-c", SHELL, json.dumps([configure, *cells]), env={"IPYTHONDIR": str(tmp_path / "ipython")})
        return ended.stdout + ended.stderr

    return shell


def events(receiver: Receiver) -> list[tuple[str, int, Any]]:
    """Return name, severity and message of the received records."""
    return [(each.name, each.severity, each.attributes.get("exception.message")) for each in receiver.records()]


def test_exceptions_in_cells_are_events(receiver: Receiver, shell: Callable[..., str]) -> None:
    """With ERROR, because the kernel continues. IPython shows them as before.

    Interrupts and exits are not events, because the user asked for them; a cell with bad syntax has not run.
    """
    output = shell(
        INSTRUMENT,
        "def load():\n    raise ValueError('no such shard')",
        "load()",
        "raise KeyboardInterrupt",
        "sys.exit(3)",
        "1 +",
        "torch.empty(2**60, dtype=torch.uint8)",
        "import asyncio\nawait asyncio.sleep(0)\nraise RuntimeError('asynchronous')",
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
    )
    first, (name, severity, message), *others = events(receiver)
    assert ("exception", ERROR, "no such shard") == first
    assert ("out_of_memory", ERROR) == (name, severity)
    assert f"{2**60} bytes" in message
    assert [("exception", ERROR, "asynchronous"), ("exception", ERROR, "division by zero")] == others
    assert "in load" in receiver.records()[0].attributes["exception.stacktrace"]
    assert 1 == output.count("ValueError: no such shard")
    assert "Error in callback" not in output


def test_uninstrument_ends_the_events(receiver: Receiver, shell: Callable[..., str]) -> None:
    """IPython has the same callbacks as before. A second instrumentation reports each exception once."""
    callbacks = "list(get_ipython().events.callbacks['post_run_cell'])"
    output = shell(
        f"before = {callbacks}",
        INSTRUMENT,
        "instrumentation.uninstrument()",
        f"print('same callbacks:', before == {callbacks})",
        "raise ValueError('not observed')",
        INSTRUMENT,
        "monitel.torch.instrument(sources='-steps,-waits,-compilation')",
        "raise ValueError('observed')",
    )
    assert "same callbacks: True" in output
    assert [("exception", ERROR, "observed")] == events(receiver)
