"""The line at the end of a process."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from monitel_otlp.accounting import Account
from monitel_otlp.exit_summary import exit_summary


def test_command_is_for_a_shell() -> None:
    """A folder whose name has a space or a quote is one argument of the command."""
    folder = PurePosixPath("/data/my runs/it's")
    accounts = {signal: Account(1, 0, 1, 0, 0, {}) for signal in ("metrics", "logs", "traces")}
    line = exit_summary(accounts, folder, offline=True, stored=True)
    command = line.partition("replay with: ")[2]
    assert ["monitel", "replay", str(folder), "--endpoint", "http://HOST:4318"] == shlex.split(command)
