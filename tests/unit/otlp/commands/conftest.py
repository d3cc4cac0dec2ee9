"""Fixtures of the commands: spools to read, and commands that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.otlp.commands.spooled_run import Printed
from tqdm import tqdm

from monitel_otlp.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.otlp.commands.spooled_run import Command


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
