"""The processes that are attempts of one run, and the names of folders."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from monitel_otlp.ledger.run_identity import identify

IDS = [
    "1",
    "a",
    "A",
    "a/b",
    "a\\b",
    "../../etc/passwd",
    "/",
    ".",
    "..",
    "\0",
    "\n",
    "é",
    "e\u0301",
    "\udc80",
    "\\udc80",
    "x" * 5000,
]


def folder(run: object) -> str:
    """Return the name of the folder of a run."""
    return identify({"training.run.id": run}).folder([])


@pytest.mark.parametrize("run", IDS)
def test_run_id_is_never_part_of_a_path(run: str) -> None:
    """The folder of any run id has a short name of lower-case letters and digits, and is the same for each attempt."""
    assert re.fullmatch(r"run-[0-9a-f]{40}", folder(run))
    assert folder(run) == folder(run)


def test_two_run_ids_never_share_a_folder() -> None:
    """Ids that differ only in case, in their form or in an escape have different folders."""
    assert all(folder(one) != folder(other) for one, other in combinations(IDS, 2))


def test_number_is_the_run_id_of_its_digits() -> None:
    """An id that was given as an int is the id that a variable gives as text."""
    assert folder("17") == folder(17)


@pytest.mark.parametrize("run", [None, "", "none"])
def test_process_without_a_run_id_is_a_run(run: str | None) -> None:
    """Without an id, or with torchrun's default, two processes are two runs."""
    identity = identify({} if run is None else {"training.run.id": run})
    first = identity.folder([])
    assert first != identity.folder([first])
    assert "" == identity.run


def test_torchrun_without_an_id_joins_only_its_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs with the id ``none`` are two runs, and a restarted worker continues the latest run of its agent."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    attributes = {"training.run.id": "none"}
    first = identify(attributes).folder([])
    second = identify(attributes).folder([first])
    assert first < second
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert second == identify(attributes).folder([first, second, "process-9", "agent-0000-9"])
    assert identify(attributes).folder([]) not in {first, second}


def test_folder_of_torchruns_logs_identifies_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of torchrun's logs identifies its agent, even if a shell is between the agent and the worker."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    names: list[str] = []
    for agent, attempt in [("a", 0), ("a", 1), ("b", 0), ("a", 0)]:
        monkeypatch.setenv(
            "TORCHELASTIC_ERROR_FILE", f"/tmp/torchelastic_x/none_{agent}/attempt_{attempt}/0/error.json"
        )
        names.append(identify({"training.run.id": "none"}).folder(names))
    assert names[0] == names[1] == names[3] != names[2]
