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

ERROR, FATAL = 17, 21  # severities of OTLP

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
import gc, sys, weakref, threading
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

    def run(self, *cells: str, script: str = SHELL, status: int = 0) -> str:
        """Run cells after those that configure the pipeline; return the output."""
        path = self.folder / "shell.py"
        path.write_text(script, encoding="utf-8")
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
        assert status == ended.returncode, ended.stderr
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


def test_exception_in_a_cell_is_an_event(shell: Shell) -> None:
    """One event with ERROR is sent, because the kernel continues. IPython shows the exception as before."""
    output = shell.run(INSTRUMENT, "def load():\n    raise ValueError('no such shard')", "load()", "print('continues')")
    assert [("exception", ERROR, "no such shard")] == shell.events()
    (record,) = shell.receiver.records()
    assert "ValueError" == record.attributes["exception.type"]
    assert "in load" in record.attributes["exception.stacktrace"]
    assert 1 == output.count("ValueError: no such shard")
    assert "continues" in output
    assert "Error in callback" not in output


def test_kinds_of_exceptions(shell: Shell) -> None:
    """Interrupts and exits are not events, because the user asked for them; a cell with bad syntax has not run."""
    shell.run(
        INSTRUMENT,
        "raise KeyboardInterrupt",
        "sys.exit(3)",
        "1 +",
        "torch.empty(2**60, dtype=torch.uint8)",
        "raise torch.OutOfMemoryError('20 GiB')",
        "import asyncio\nawait asyncio.sleep(0)\nraise RuntimeError('asynchronous')",
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
    )
    (name, severity, message), *others = shell.events()
    assert ("out_of_memory", ERROR) == (name, severity)
    assert f"{2**60} bytes" in message
    assert [
        ("out_of_memory", ERROR, "20 GiB"),
        ("exception", ERROR, "asynchronous"),
        ("exception", ERROR, "division by zero"),
    ] == others


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
