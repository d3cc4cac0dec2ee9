"""Workflow files: everything that they run exists here, and they have only the rights that they need."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
CREATED = {"build/site"}


def load(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def unknown(command: str) -> list[str]:
    """Return the targets and files that a command names and that are not in the repository."""
    words = shlex.split(command.replace("$(", "( ").replace('"', " "))
    found = []
    for previous, word in zip(["", *words], words, strict=False):
        if previous == "make":
            known = word in TARGETS
        elif "/" in word or word.endswith((".py", ".txt")):
            known = word in CREATED or (ROOT / re.sub(r"\[\w+\]$", "", word).rstrip(")")).exists()
        else:
            continue
        found += [] if known else [word]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(path: Path) -> None:
    """Every target of make and file that a step runs exists."""
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    assert [] == [word for command in commands for word in unknown(command)]


def test_only_publishing_has_an_identity() -> None:
    """The job that publishes gets a token of a few minutes, only for a tag, after all files were built and checked."""
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert ["publish"] == [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert "github.ref_type == 'tag'" == jobs["publish"]["if"]
    assert {"same-everywhere", "wheels"} == set(jobs["publish"]["needs"])
    assert not any("run" in step for step in jobs["publish"]["steps"])
