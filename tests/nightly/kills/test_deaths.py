"""Jobs that die at random, in an outage, as two ranks, by a crash in C, beside children, and at their exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.nightly.kills.backend import PACKAGE, environment, running_backend
from tests.nightly.kills.batch import Batch, compare_batch, draw_job, run_batch
from tests.nightly.kills.load import TILES
from tests.nightly.kills.nursery import DEADLINE, Death
from tests.support.checks import wait_until
from tests.support.scripts import needs_c

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nightly.kills.nursery import Nursery

_SEED = 20261123
_KILLS = 20
_LIFE = 2.5  # seconds
_KILLED: dict[str, Any] = {"kill_after": _LIFE, "life": None, "fresh": False, "forks": "never", "threads": 2}
_DYING: dict[str, Any] = {**_KILLED, "kill_after": 60.0, "life": _LIFE}
_RANK = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

_JOBS: dict[str, dict[str, Any]] = {
    "killed": _KILLED,
    "rank 0": {**_KILLED, "environment": {**_RANK, "RANK": "0", "LOCAL_RANK": "0"}},
    "rank 1": {**_KILLED, "environment": {**_RANK, "RANK": "1", "LOCAL_RANK": "1"}},
    "abort in C": {**_DYING, "ending": "abort in C"},
    "null pointer in C": {**_DYING, "ending": "null pointer in C"},
    "null pointer": {**_DYING, "ending": "null pointer"},
    "forks": {**_KILLED, "forks": "always"},
    "orphan": {**_KILLED, "forks": "once", "orphans": True},
    "shutdown": {**_KILLED, "life": _LIFE - 0.5, "ending": "shutdown"},
    "exit": {**_KILLED, "life": _LIFE - 0.5, "ending": "exit"},
}
_NUMBERS = {name: number for number, name in enumerate(_JOBS)}
_SIGNALS = {"abort in C": signal.SIGABRT, "null pointer in C": signal.SIGSEGV, "null pointer": signal.SIGSEGV}


def test_killed_jobs_lose_at_most_a_moment(nursery: Nursery, memory: Path) -> None:
    """Twenty jobs die within four seconds, beside a backend that refuses and stalls, and so do collectors."""
    found = run_batch(nursery, memory / "kills", _SEED, _KILLS, changes=[{"tiles": TILES}] * _KILLS)
    assert [] == found.problems
    assert found.kills > _KILLS // 2
    assert sum(len(each.deaths) for each in found.processes) >= _KILLS // 4


def test_jobs_without_a_box_lose_more(nursery: Nursery, memory: Path) -> None:
    """Without the black box the fuzzer finds losses."""
    off = {**_KILLED, "kill_after": 1.5, "environment": {"MONITEL_BLACK_BOX": "0"}}
    found = run_batch(nursery, memory / "without", _SEED, 2, modes=("refuse",), changes=[off, off])
    assert any("are promised" in problem for problem in found.problems)


def test_run_collects_the_job_that_it_has_started(memory: Path) -> None:
    """``monitel run`` ends as its command does, and has delivered everything by then."""
    folder = memory / "run"
    boxes = folder / "boxes"
    boxes.mkdir(parents=True, mode=0o700)
    with running_backend(folder / "arrivals") as backend:
        job = {**draw_job(Random(_SEED), 0, folder, backend), **_KILLED}
        options = ["-m", "monitel_otlp", "run", "--endpoint", backend.url, "--"]
        command = [sys.executable, *options, sys.executable, "-m", f"{PACKAGE}.job", json.dumps(job)]
        env = {**environment(), "MONITEL_BLACK_BOX_DIR": str(boxes)}
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            backend.behave("refuse")
            wait_until(lambda: any(boxes.glob("*-*/cut-a")), "a cut")
            threading.Event().wait(1.0)
            (path,) = folder.glob("*.history")
            death = Death(0, int(path.stem.partition("-")[2]), -signal.SIGKILL, time.monotonic_ns())
            os.kill(death.pid, signal.SIGKILL)
            backend.behave("healthy")
            process.communicate(timeout=DEADLINE)
        assert -signal.SIGKILL == process.returncode
    found = Batch(_SEED, {0: death}, collectors_killed=0)
    compare_batch(found, folder)
    assert [] == found.problems
    (died,) = found.job(0).deaths
    assert "SIGKILL" == died.attributes["process.exit.signal"]
    assert "parent" == died.attributes["process.exit.time.source"]


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_workers_of_a_data_loader_do_not_keep_it_alive(nursery: Nursery, memory: Path) -> None:
    """A killed job is collected while the forked workers of its DataLoader still run."""
    job = {**_KILLED, "loader": True, "orphans": True, "kill_after": 8.0}
    found = run_batch(nursery, memory / "loader", _SEED, 1, modes=("refuse",), changes=[job])
    found.errors = [each for each in found.errors if "multiprocessing" not in each and "Connection" not in each]
    assert [] == found.problems
    assert 1 == len(found.job(0).deaths)


@pytest.fixture(scope="module")
def batch(nursery: Nursery, memory: Path) -> Batch:
    """All jobs at once, while the backend refuses or stalls until they are dead."""
    return run_batch(nursery, memory / "deaths", 1, len(_JOBS), modes=("refuse", "stall"), changes=[*_JOBS.values()])


@pytest.mark.parametrize("name", _JOBS)
def test_only_the_last_moment_is_lost(batch: Batch, name: str) -> None:
    """Neither the job nor one of its children loses more than is promised, and nothing arrives twice."""
    found = [each for each in batch.processes if each.id.job == _NUMBERS[name]]
    assert [] == [problem for each in found for problem in each.verdict.problems]
    assert found
    assert batch.job(_NUMBERS[name]).verdict.done > 100


def test_nothing_is_left(batch: Batch) -> None:
    """There is no box, and no request on disk."""
    assert [] == batch.left


@pytest.mark.parametrize("name", [name for name in _JOBS if name not in {"shutdown", "exit"}])
def test_death_is_described(batch: Batch, name: str) -> None:
    """One event names the process and its last step."""
    job = batch.job(_NUMBERS[name])
    (died,) = job.deaths
    assert job.id.pid == died.attributes["process.pid"]
    assert died.attributes["training.step"] - job.history.step in {0, 1}  # it is written down after it is set
    assert 21 == died.severity


@needs_c
@pytest.mark.parametrize("name", _SIGNALS)
def test_crash_leaves_stacks(batch: Batch, memory: Path, name: str) -> None:
    """The signal and the Python stacks are in the event, the stacks on stderr, and the exit status is as without us."""
    job = batch.job(_NUMBERS[name])
    (died,) = job.deaths
    assert -_SIGNALS[name] == job.death.status
    assert _SIGNALS[name].name == died.attributes["process.exit.signal"]
    printed = (memory / "deaths" / f"{_NUMBERS[name]}.log").read_text(encoding="utf-8")
    for stacks in (died.attributes["code.stacktrace"], printed):
        assert "in run_job" in stacks
        assert "load.py" in stacks  # other threads, too


def test_ranks_die_as_ranks(batch: Batch) -> None:
    """Each rank's samples and death have its rank."""
    for rank in range(2):
        (died,) = batch.job(_NUMBERS[f"rank {rank}"]).deaths
        assert rank == died.resource["training.rank"]


def test_children_are_collected(batch: Batch) -> None:
    """In the storm of forks there are children of each kind, and the events of all of them have arrived."""
    children = [each for each in batch.processes if not each.is_job and each.id.job == _NUMBERS["forks"]]
    assert len(children) > 20
    assert any(each.verdict.done and not each.history.ended_ns for each in children)
    assert any(each.history.ended_ns for each in children)
