"""The program ``monitel`` in this process, called as its entry point is."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

import pytest
from tqdm import tqdm


@dataclass(frozen=True)
class Printed:
    """The end of a command: its exit status, and its output; log lines are part of stderr."""

    status: int
    stdout: str
    stderr: str

    @property
    def last(self) -> str:
        return self.stdout.splitlines()[-1]

    def sections(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for line in self.stdout.splitlines():
            if not line.startswith(" "):
                rows = found.setdefault(line, {})
                continue
            name, value = line[2:20].strip(), line[21:]
            rows[name] = f"{rows[name]}\n{value}" if name in rows else value
        return found


class Program:
    """Runs commands of ``monitel``.

    Args:
        capsys: The fixture of the test.
        caplog: The fixture of the test.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self._capsys = capsys
        self._caplog = caplog
        (found,) = entry_points(group="console_scripts", name="monitel")
        self._main = found.load()

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None, status: int = 0) -> Printed:
        """Run a command to its end; the exit status must be as expected, and no traceback is printed."""
        self._capsys.readouterr()
        self._caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the transport sets it
            patch.setattr(tqdm, "monitor_interval", 0)  # no thread that outlives the command
            patch.setattr(sys, "argv", ["monitel", *map(str, arguments)])
            patch.setattr("monitel.process.failures._warned", set())  # as in a new process
            try:
                found = self._main()
            except SystemExit as ended:
                found = ended.code
        output = self._capsys.readouterr()
        printed = Printed(found, output.out, output.err + self._caplog.text)
        assert status == printed.status, printed
        assert "Traceback" not in printed.stdout + printed.stderr
        return printed
