"""Fixtures of ``compare``: jobs with known numbers, and the command in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.otlp.commands.spooled_run import Printed

from monitel_otlp.__main__ import main

if TYPE_CHECKING:
    from tests.unit.console.compare.jobs import Compare, Compared


@pytest.fixture(autouse=True)
def run_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs have run events, as those of users."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that runs the command in this process, and returns its output."""

    def run(*arguments: object, returncode: int = 0) -> Printed:
        capsys.readouterr()  # of the jobs
        status = main(["compare", *map(str, arguments)])
        printed = capsys.readouterr()
        assert returncode == status, printed.err
        assert "Traceback" not in printed.err
        return Printed(printed.out, printed.err)

    return run


@pytest.fixture
def compared(compare: Compare) -> Compared:
    """Return a function that returns the runs of ``compare --json``, each with its values by name."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(compare(*arguments, "--json").stdout)["runs"]
        for each in found:
            each["values"] = {value["name"]: value["value"] for value in each["values"]}
        return found

    return run
