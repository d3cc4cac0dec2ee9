"""Fixtures of the commands: spools to read, and commands that run in this process."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.unit.otlp.commands.spooled_run import Events, Printed, events_request
from tqdm import tqdm

import monitel_otlp.spool.spool
from monitel_otlp.__main__ import main
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.unit.otlp.commands.spooled_run import Command


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spool of 20 events: a request, a raw segment in small blocks, and a request."""
    monkeypatch.setattr(monitel_otlp.spool.spool, "_default_decoders", lambda: {"events": Events})
    with closing(Spool(tmp_path / "runs" / "spool")) as spool:
        spool.append(events_request([0]))
        spool.append_raw("logs", ("events",), [block for number in range(1, 19) for block in encode_blocks([number])])
        spool.append(events_request([19]))
    return tmp_path / "runs"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Command:
    """Return a function that runs a command as ``python -m monitel_otlp`` does, without a new process."""

    def run(*arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Printed:
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tqdm, "monitor_interval", 0)  # no thread that outlives the command
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert returncode == status, printed.err + caplog.text
        assert "Traceback" not in printed.err + caplog.text
        return Printed(printed.out, printed.err + caplog.text)

    return run
