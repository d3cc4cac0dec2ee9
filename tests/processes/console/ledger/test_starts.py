"""Processes that end before their first activity or step: their time is ``startup``."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.processes.console.ledger.test_restarts import NEAR, NEVER, RUN, STEPS, durations, seconds, the_run
from tests.support.spools import names

from monitel_otlp.ledger import starts
from monitel_otlp.ledger.history import Attempt
from monitel_otlp.ledger.reading import read_runs
from monitel_otlp.ledger.run_folder import LEDGERS, open_run
from monitel_otlp.ledger.run_identity import identify
from monitel_otlp.ledger.starts import Start
from monitel_otlp.spool.lock import Owner, this_process

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

IDENTITY = identify({"training.run.id": "run-7"})
START = STEPS[: STEPS.index("first,")] + "time.sleep(0.5)\n"
TOTAL = "print(sum(each.total for each in monitel.counters() if each.counter.name == 'training.time'))\n"
ENDS = {
    "SIGKILL": ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "exception": ("raise KeyError", 1),
    "exit code": ("sys.exit(3)", 3),
}


def starts_in(root: Path) -> list[str]:
    """Return the files of starts."""
    return [path.name for path in root.glob(f"{LEDGERS}/*/start-*")]


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=list(ENDS))
def test_run_that_fails_in_startup_has_spent_its_time_there(end: str, code: int, train: Run, tmp_path: Path) -> None:
    """The start of each process is ``startup``, only the time between processes is ``down``."""
    train(STEPS, 0, 3, NEVER, env=RUN)
    before = the_run(tmp_path)
    begin, spent = time.monotonic(), 0.0
    for _ in range(2):
        began = time.monotonic()
        train(f"{START}{end}\n", env={**RUN, "MONITEL_RUN_EVENTS": "1"}, returncode=code)
        spent += time.monotonic() - began
    assert before == the_run(tmp_path)
    ended = train(f"{STEPS}{TOTAL}", 3, 9, NEVER, env=RUN)
    spent_in_all = time.monotonic() - begin
    run = the_run(tmp_path)
    assert 4 == run.attempts
    startup = seconds(run, "startup") - seconds(before, "startup")
    assert 2 * 0.5 < startup < spent_in_all
    assert seconds(run, "down") < spent_in_all - spent + 4 * NEAR
    assert [] == starts_in(tmp_path / "spool")
    exported = float(ended.stdout.splitlines()[-1])
    assert (run.elapsed_ns - before.elapsed_ns) / 10**9 == pytest.approx(exported, abs=2 * NEAR)


def test_run_begins_with_the_first_process_even_if_that_fails(train: Run, tmp_path: Path) -> None:
    """A run whose first process is killed in its start is as old as that process."""
    began_ns = time.time_ns()
    train(f"{START}{ENDS['SIGKILL'][0]}\n", env=RUN, returncode=-signal.SIGKILL)
    ended_ns = time.time_ns()
    assert ([], []) == read_runs(tmp_path / "spool")
    counted = STEPS.replace("monitel.set_step(step)", "sys.modules['monitel.step'].advance(step)")
    counting = train(counted, 1, 8, NEVER, env=RUN)
    run = the_run(tmp_path)
    assert (2, True) == (run.attempts, run.start_ns < ended_ns)
    assert began_ns - run.start_ns < 10**9
    train(STEPS, 4, 5, NEVER, env=RUN)
    lost = sum(duration for step, duration in durations(counting.stdout).items() if step >= 4)
    assert lost == pytest.approx(seconds(the_run(tmp_path), "lost"), abs=0.06)  # the steps of the first one are known


HELPERS = {
    "a helper that ends well": (START, RUN),
    "a process without a run id": (f"{START}{ENDS['exception'][0]}\n", {}),
    "rank 1": (f"{START}{ENDS['exception'][0]}\n", {**RUN, "RANK": "1"}),
}


@pytest.mark.parametrize(("script", "env"), HELPERS.values(), ids=list(HELPERS))
def test_other_processes_leave_no_start(script: str, env: dict[str, str], train: Run, tmp_path: Path) -> None:
    """Only a process that may have been about to train counts."""
    train(script, env=env, returncode=int("KeyError" in script))
    assert not (tmp_path / "spool" / LEDGERS).exists() or [] == names(tmp_path / "spool" / LEDGERS)


PARENT = f"""\
import subprocess
{START}
path = sys.argv[1]
sys.exit(subprocess.run([sys.executable, path, "0", "10", "-1"]).returncode)
"""


def test_parent_that_lives_as_long_as_the_run_is_not_an_attempt(train: Run, tmp_path: Path) -> None:
    """A process that starts the ranks with its own environment neither blocks their ledger nor counts."""
    child = tmp_path / "child.py"
    child.write_text("import monitel, monitel_otlp, os, sys, time\n" + STEPS, encoding="utf-8")
    ended = train(PARENT, child, env=RUN)
    assert "cannot be stored" not in ended.stderr
    run = the_run(tmp_path)
    assert (1, True) == (run.attempts, run.ended)
    assert [] == starts_in(tmp_path / "spool")


def start(begin: int, end: int, name: str = "other") -> Attempt:
    """Return a start from one second to another one."""
    return Attempt(name, {"startup": (end - begin) * 10**9}, end * 10**9)


def test_starts_that_overlap_do_not_count() -> None:
    """Simultaneous starts of ranks count once. A start that overlaps another attempt does not count."""
    own = start(40, 50, "own")
    earlier, last, down_ns, unseen_ns = starts.fold_starts(
        None, [start(1, 10), start(2, 11), start(15, 20), start(30, 45), own], own
    )
    assert (2, {"startup": 14 * 10**9, "down": 5 * 10**9}) == (earlier.attempts, dict(earlier.activities))
    assert (5 * 10**9, 14 * 10**9) == (down_ns, unseen_ns)
    assert last is not None
    assert (20 * 10**9, (20 * 10**9, 0)) == (last.last_ns, starts.gap_after(last, own))


def store(root: Path, process: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a start as a process does."""
    with monkeypatch.context() as patch:
        patch.setattr(starts, "this_process", lambda: process)
        Start(root / LEDGERS, IDENTITY).store(start(1, 2))


def test_starts_are_limited_in_number_and_removed_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails in startup forever does not fill the disk; damaged files and those of living processes wait."""
    own = this_process()
    for number in range(starts.LIMIT + 10):
        store(tmp_path, own._replace(start=str(number)), monkeypatch)
    assert starts.LIMIT == len(starts_in(tmp_path))
    opened = open_run(tmp_path, IDENTITY)
    damaged, removed, *_ = sorted(starts_in(tmp_path))
    (opened.path / damaged).write_bytes(b"{")
    assert starts.LIMIT - 1 == len(opened.starts("run-7"))
    assert [] == opened.starts("run-8")
    (opened.path / removed).unlink()
    store(tmp_path, own, monkeypatch)
    assert starts.LIMIT - 2 == len(opened.starts("run-7"))  # this process still runs
    opened.remove()
    assert [] == names(tmp_path / LEDGERS)
