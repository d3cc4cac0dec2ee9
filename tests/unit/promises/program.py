"""The program ``monitel`` in this process, with variables, and with log lines as a part of what it prints."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from tests.support.commands import Printed, command


@dataclass(frozen=True)
class Program:
    """Runs commands of ``monitel``."""

    caplog: pytest.LogCaptureFixture

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None, status: int = 0) -> Printed:
        """Run a command to its end; the exit status must be as expected, and no traceback is printed."""
        self.caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the transport sets it
            patch.setattr(sys, "argv", ["monitel", *map(str, arguments)])  # its name is in the usage
            patch.setattr("monitel.process.failures._warned", set())  # as in a new process
            printed = command(*arguments)
        printed = printed._replace(stderr=printed.stderr + self.caplog.text)
        assert status == printed.status, printed
        assert "Traceback" not in printed.stdout + printed.stderr
        return printed
