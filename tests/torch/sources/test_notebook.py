"""Exceptions of notebook cells as events, with a real IPython shell in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path

ERROR = 17  # of OTLP

#: Runs each cell of the second argument, a list as JSON, and prints what IPython prints.
SHELL = """\
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
options = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
shell = InteractiveShell.instance(config=Config(options))
for cell in json.loads(sys.argv[2]):
    shell.run_cell(cell)
"""
CONFIGURE = """\
import sys, threading
import torch, monitel, monitel.torch, monitel_otlp
sys.argv = ["train.py"]
pipeline = monitel_otlp.configure(endpoint=URL, spool_dir="spool", export_interval=3600.0)
"""
INSTRUMENT = "instrumentation = monitel.torch.instrument(waits=False, compilation=False)"


class Shell:
    """Runs cells with a pipeline that sends to a receiver."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.folder = folder
        self.receiver = receiver

    def run(self, *cells: str) -> str:
        """Run cells after those that configure the pipeline; return the output."""
        path = self.folder / "shell.py"
        path.write_text(SHELL, encoding="utf-8")
        configure = CONFIGURE.replace("URL", repr(self.receiver.url))
        ended = subprocess.run(
            [sys.executable, path, self.receiver.url, json.dumps([configure, *cells])],
            env={**os.environ, "IPYTHONDIR": str(self.folder / "ipython"), "MONITEL_RUN_EVENTS": "0"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == ended.returncode, ended.stderr
        return ended.stdout + ended.stderr

    def events(self) -> list[tuple[str, int, Any]]:
        """Return name, severity and message of the received records."""
        return [
            (record.name, record.severity, record.attributes.get("exception.message"))
            for record in self.receiver.records()
        ]


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Provide a shell."""
    with Receiver() as receiver:
        yield Shell(tmp_path, receiver)


def test_exceptions_in_cells_are_events(shell: Shell) -> None:
    """With ERROR, because the kernel continues. IPython shows them as before.

    Interrupts and exits are not events, because the user asked for them; a cell with bad syntax has not run.
    """
    output = shell.run(
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
    first, (name, severity, message), *others = shell.events()
    assert ("exception", ERROR, "no such shard") == first
    assert ("out_of_memory", ERROR) == (name, severity)
    assert f"{2**60} bytes" in message
    assert [("exception", ERROR, "asynchronous"), ("exception", ERROR, "division by zero")] == others
    assert "in load" in shell.receiver.records()[0].attributes["exception.stacktrace"]
    assert 1 == output.count("ValueError: no such shard")
    assert "Error in callback" not in output


def test_uninstrument_ends_the_events(shell: Shell) -> None:
    """IPython has the same callbacks as before. A second instrumentation reports each exception once."""
    callbacks = "list(get_ipython().events.callbacks['post_run_cell'])"
    output = shell.run(
        f"before = {callbacks}",
        INSTRUMENT,
        "instrumentation.uninstrument()",
        f"print('same callbacks:', before == {callbacks})",
        "raise ValueError('not observed')",
        INSTRUMENT,
        "monitel.torch.instrument(steps=False, waits=False, compilation=False)",
        "raise ValueError('observed')",
    )
    assert "same callbacks: True" in output
    assert [("exception", ERROR, "observed")] == shell.events()
