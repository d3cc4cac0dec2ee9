"""The command ``monitel``, the temporality of sums, and the time zone of texts, for tests in all folders."""

import sys
import time
from collections.abc import Mapping

import pytest
from tests.support.commands import Printed, Program, command
from tests.support.inbox import CUMULATIVE, TEMPORALITY


@pytest.fixture
def program(caplog: pytest.LogCaptureFixture) -> Program:
    """Return a function that runs ``monitel`` with variables; log lines are part of what it prints to stderr."""

    def program(*arguments: object, env: Mapping[str, str] | None = None, status: int = 0) -> Printed:
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the transport sets it
            patch.setenv("GRPC_VERBOSITY", "ERROR")
            patch.setattr(sys, "argv", ["monitel", *map(str, arguments)])  # its name is in the usage
            patch.setattr("monitel.process.failures._warned", set())  # as in a new process
            printed = command(*arguments)
        printed = printed._replace(stderr=printed.stderr + caplog.text)
        assert status == printed.status, printed
        assert "Traceback" not in printed.stdout + printed.stderr
        return printed

    return program


@pytest.fixture(params=["cumulative", "delta"])
def temporality(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the temporality of sums that only rise, by the standard variable."""
    monkeypatch.setenv(TEMPORALITY, request.param)
    return CUMULATIVE if request.param == "cumulative" else 1


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time is UTC, and the width of the screen is that of the stream."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("COLUMNS", raising=False)
    time.tzset()
