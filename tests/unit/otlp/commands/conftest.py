"""Fixtures of the commands: spools to read, and commands that run in this process."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.unit.otlp.commands.spooled_run import Events, Printed, events_request, span_request, window_request

import monitel_otlp.spool.spool
from monitel_otlp.__main__ import main
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.unit.otlp.commands.spooled_run import Command

    Sections = dict[str, dict[str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with the spool of a run without a backend: 20 windows, 20 events and 20 spans, each in a request."""
    with closing(Spool(tmp_path / "runs" / "20260101-000000-7-1")) as spool:
        for number in range(20):
            spool.append(window_request(number))
            spool.append(events_request([number]))
            spool.append(span_request(number))
    return tmp_path / "runs"


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
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert returncode == status, printed.err + caplog.text
        assert "Traceback" not in printed.err + caplog.text
        return Printed(printed.out, printed.err + caplog.text)

    return run


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Callable[..., Sections]:
    """Return a function that runs ``doctor`` and returns its output by section and row.

    The exit status must be ``status``, and nothing may be printed to stderr.
    """

    def examine(*arguments: str, status: int) -> Sections:
        ended = main(["doctor", *arguments])
        output = capsys.readouterr()
        assert (status, "") == (ended, output.err), output.out
        sections: Sections = {}
        for line in output.out.splitlines():
            if not line.startswith(" "):
                rows = sections.setdefault(line, {})
                continue
            name, value = line[2:20].strip(), line[21:]
            rows[name] = f"{rows[name]}\n{value}" if name in rows else value
        return sections

    return examine
