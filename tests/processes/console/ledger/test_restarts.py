"""Jobs that are killed and started again: the ledger of the run continues, and adds up."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import EXIT, limit
from tests.support.scripts import READY, finish, started, write_script
from tests.support.spools import names

from monitel_otlp.ledger.reading import read_runs
from monitel_otlp.ledger.run_folder import FILE, LEDGERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

    from monitel_otlp.ledger.run_time import RunTime

SECOND = 10**9
NEAR = 0.15  # seconds; a killed process has lost less than two heartbeats

#: Steps of 40 ms from the first argument on, with heartbeats in short intervals. It prints the time of each step since
#: the last one: whatever a busy machine adds is in one of them.
STEPS = """\
from monitel_otlp.ledger import run_ledger
run_ledger.HEARTBEAT = 0.03
pipeline = monitel_otlp.configure(spool_dir="spool")
first, after, killed = map(int, sys.argv[1:4])
begin = globals().get("begin", time.monotonic())
for step in range(first, after):
    monitel.set_step(step)
    time.sleep(0.04)
    if step == killed:
        time.sleep(0.1)
    end = time.monotonic()
    print(step, end - begin, flush=True)
    begin = end
    if step == killed:
        print(-1, time.time(), flush=True)
        os.kill(os.getpid(), 9)
"""

NEVER = -1
RUN = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7"}


def the_run(folder: Path) -> RunTime:
    """Return the only run, which must add up."""
    runs, problems = read_runs(folder / "spool")
    assert [] == problems
    (run,) = runs
    assert sum(run.activities.values()) == run.elapsed_ns == run.last_ns - run.start_ns
    assert all(each >= 0 for each in run.activities.values())
    return run


def durations(stdout: str) -> dict[int, float]:
    """Return the seconds of each step that a script has printed."""
    pairs = (line.split() for line in stdout.splitlines())
    return {int(step): float(seconds) for step, seconds in pairs}


def seconds(run: RunTime, activity: str) -> float:
    """Return the seconds of an activity."""
    return run.activities.get(activity, 0) / SECOND


def test_killed_run_continues_at_a_lower_step(train: Run, tmp_path: Path) -> None:
    """The time between two processes is ``down``; the steps that are done again are ``lost``, and only once."""
    first = train(STEPS, 100, 200, 120, env=RUN, returncode=-signal.SIGKILL)
    alone = the_run(tmp_path)
    assert (1, False, {"startup", "step"}) == (alone.attempts, alone.ended, {*alone.activities})
    begin_ns = time.time_ns()
    second = train(STEPS, 110, 115, NEVER, env=RUN)
    end_ns = time.time_ns()
    run = the_run(tmp_path)
    assert ("run-7", 2, True) == (run.run, run.attempts, run.ended)
    steps = durations(first.stdout)
    unstored = steps.pop(-1) - alone.last_ns / SECOND  # after the last heartbeat
    assert -0.01 < unstored < limit(NEAR)
    lost = sum(duration for step, duration in steps.items() if step >= 110) - unstored
    assert lost == pytest.approx(seconds(run, "lost"), abs=NEAR / 3)
    kept = sum(duration for step, duration in steps.items() if step < 110) + sum(durations(second.stdout).values())
    assert kept == pytest.approx(seconds(run, "step"), abs=NEAR / 3)
    assert 0 < run.activities["down"] < (end_ns - alone.last_ns)
    assert begin_ns - alone.last_ns == pytest.approx(run.activities["down"], abs=limit(NEAR) * SECOND)
    assert alone.start_ns == pytest.approx(run.start_ns, abs=SECOND / 100)
    assert abs(end_ns - run.last_ns) < SECOND
    again = train(STEPS, 115, 117, NEVER, env=RUN)
    last = the_run(tmp_path)
    assert (3, run.activities["lost"]) == (last.attempts, last.activities["lost"])
    assert sum(durations(again.stdout).values()) == pytest.approx(
        seconds(last, "step") - seconds(run, "step"), abs=0.05
    )


def test_automatic_count_loses_nothing(train: Run, tmp_path: Path) -> None:
    """A source that counts from 1 in each process does not make the steps of earlier attempts lost."""
    counted = STEPS.replace("monitel.set_step(step)", "sys.modules['monitel.step'].advance(step)")
    first = train(counted, 1, 8, NEVER, env=RUN)
    train(counted, 1, 8, NEVER, env=RUN)
    run = the_run(tmp_path)
    assert (2, False) == (run.attempts, "lost" in run.activities)
    train(STEPS, 4, 5, NEVER, env=RUN)
    # The first attempt has counted from the start of the run, so its steps are known.
    lost = sum(duration for step, duration in durations(first.stdout).items() if step >= 4)
    assert lost == pytest.approx(seconds(the_run(tmp_path), "lost"), abs=0.06)


def test_slurm_requeue_continues_the_run(train: Run, tmp_path: Path) -> None:
    """SLURM starts a requeued job with the same id; only task 0 has the ledger."""
    job = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    train(STEPS, 0, 10, 6, env={**job, "SLURM_PROCID": "0"}, returncode=-signal.SIGKILL)
    before = (tmp_path / "spool" / LEDGERS).stat().st_mtime_ns
    train(STEPS, 0, 10, NEVER, env={**job, "SLURM_PROCID": "1", "SLURM_RESTART_COUNT": "1"})
    assert before == (tmp_path / "spool" / LEDGERS).stat().st_mtime_ns
    train(STEPS, 2, 10, NEVER, env={**job, "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"})
    run = the_run(tmp_path)
    assert ("4711", 2) == (run.run, run.attempts)
    assert seconds(run, "lost") > 0.12


def test_jobs_without_an_id_are_separate_runs(train: Run, tmp_path: Path) -> None:
    """Processes without a run id, or with torchrun's default, are not joined, except for torchrun's restarts."""
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"}
    train(STEPS, 0, 3, NEVER)
    for restarts in "001":
        train(STEPS, 0, 3, NEVER, env={**torchrun, "TORCHELASTIC_RESTART_COUNT": restarts})
    runs, problems = read_runs(tmp_path / "spool")
    assert ([], [("", 1), ("", 1), ("", 2)]) == (problems, [(run.run, run.attempts) for run in runs])


@pytest.mark.parametrize("end", ["raise KeyError", "os.kill(os.getpid(), 15); time.sleep(9)"])
def test_end_is_stored_however_the_process_ends(end: str, run: Run, tmp_path: Path) -> None:
    """An exception and SIGTERM store the time up to the end, with ``shutdown``."""
    script = STEPS.replace("0.03", "60") + "monitel_otlp.pipeline\n" + end + "\n"
    with started(tmp_path, write_script(tmp_path, script), 5, 8, NEVER) as process:
        ended = finish(process)
    book = the_run(tmp_path)
    assert (True, 1) == (book.ended, book.attempts)
    assert {"startup", "step", "shutdown"} == {*book.activities}
    assert sum(durations(ended.stdout).values()) == pytest.approx(seconds(book, "step"), abs=0.1)


WITHOUT = {
    "startup only": ("with monitel.activity('init'): pass\n", {}),
    "rank 1": ("monitel.set_step(1)\n", {"RANK": "1"}),
    "rank of the resource": ("monitel.set_step(1)\n", {"OTEL_RESOURCE_ATTRIBUTES": "training.rank=3"}),
    "forked child": ("if not os.fork():\n    monitel.set_step(1)\n    sys.exit()\nos.wait()\n", {}),
}


@pytest.mark.parametrize(("script", "env"), WITHOUT.values(), ids=list(WITHOUT))
def test_process_without_a_run_stores_nothing(script: str, env: dict[str, str], train: Run, tmp_path: Path) -> None:
    """No ledger is made by other ranks, forked children, and processes without activities or steps."""
    ended = train("monitel_otlp.configure(spool_dir='spool')\n" + script, env=env)
    assert "failed" not in ended.stderr
    assert not (tmp_path / "spool" / LEDGERS).exists()


def test_launcher_stores_nothing(run: Run, tmp_path: Path) -> None:
    """Torchrun's agent, which an instrumented command line configures too, has no ledger."""
    script = write_script(tmp_path, "monitel_otlp.configure(spool_dir='spool')\nmonitel.set_step(1)\n")
    launcher = script.rename(tmp_path / "torchrun")
    run(launcher)
    assert not (tmp_path / "spool" / LEDGERS).exists()


def test_two_pipelines_of_one_process_are_one_attempt(train: Run, tmp_path: Path) -> None:
    """A second ``configure()`` continues the ledger of the process: it makes nothing lost or down."""
    script = STEPS + STEPS.replace("range(first, after)", "range(after, after + 3)")
    ended = train(script, 0, 5, NEVER, env=RUN)
    run = the_run(tmp_path)
    assert (1, True, {"startup", "step", "shutdown"}) == (run.attempts, run.ended, {*run.activities})
    assert 8 == len(durations(ended.stdout))
    train(STEPS, 0, 1, NEVER, env=RUN)
    lost = sum(durations(ended.stdout).values())
    assert lost == pytest.approx(seconds(the_run(tmp_path), "lost"), abs=NEAR)


ALIVE = STEPS + READY + "sys.stdin.readline()\n"


def test_living_attempt_keeps_the_file(tmp_path: Path) -> None:
    """Two jobs with one run id at the same time: the second one logs why it stores nothing."""
    script = write_script(tmp_path, ALIVE)
    with started(tmp_path, script, 0, 2, NEVER, env=RUN) as first:
        for _ in range(3):
            assert first.stdout is not None
            first.stdout.readline()
        with started(tmp_path, script, 50, 54, NEVER, env=RUN) as second:
            ended = finish(second, "\n")
        assert 1 == the_run(tmp_path).attempts
        finish(first, "\n")
    assert 1 == ended.stderr.count("the ledger of the run cannot be stored")
    assert "in use by a running process" in ended.stderr
    run = the_run(tmp_path)
    assert (1, True, False) == (run.attempts, run.ended, "lost" in run.activities)


def test_overlap_of_two_attempts_is_counted_once(tmp_path: Path) -> None:
    """An attempt that begins before the end of the earlier one takes over, and the time of both is counted once."""
    script = write_script(tmp_path, ALIVE)
    with started(tmp_path, script, 0, 2, NEVER, env=RUN) as first:
        for _ in range(3):
            assert first.stdout is not None
            first.stdout.readline()
        start_ns = the_run(tmp_path).start_ns
        with started(tmp_path, script, 5, 8, NEVER, env=RUN) as second:
            steps = list(iter(second.stdout.readline, "ready\n"))  # type: ignore[union-attr]
            assert 3 == len(steps)
            finish(first, "\n")
            deadline = time.monotonic() + 30
            while the_run(tmp_path).attempts < 2:
                assert time.monotonic() < deadline
            finish(second, "\n")
    run = the_run(tmp_path)
    assert (2, True, False) == (run.attempts, run.ended, "down" in run.activities)
    assert start_ns == pytest.approx(run.start_ns, abs=SECOND / 100)


def test_forked_child_does_not_keep_the_run(tmp_path: Path) -> None:
    """A child that lives longer than its parent, such as an orphaned worker, does not block the next attempt."""
    script = (
        STEPS + "if not os.fork():\n    sys.stdin.readline()\n    os._exit(0)\n" + READY + "os.kill(os.getpid(), 9)\n"
    )
    path = write_script(tmp_path, script)
    with started(tmp_path, "-W", "ignore", path, 0, 3, NEVER, env=RUN) as first:
        assert 3 == len([*iter(first.stdout.readline, "ready\n")])  # type: ignore[union-attr]
        first.wait(30)
        with started(tmp_path, path, 3, 4, 3, env=RUN) as second:
            finish(second)
        assert 2 == the_run(tmp_path).attempts


FULL = """\
import errno
from monitel_otlp.ledger import run_folder
def encode(history): raise OSError(errno.ENOSPC, "No space left on device")
run_folder.encode = encode
"""
HANGING = """\
from monitel_otlp.ledger import run_folder
def open_run(*_): time.sleep(3600)
from monitel_otlp.ledger import run_ledger
run_ledger.open_run = open_run
"""


def test_full_disk_is_logged_once(train: Run, tmp_path: Path) -> None:
    """The job runs on without its ledger."""
    ended = train(FULL + STEPS, 0, 10, NEVER, env=RUN)
    assert 1 == ended.stderr.count("the ledger of the run cannot be stored: [Errno 28]")
    assert [] == list((tmp_path / "spool" / LEDGERS).glob(f"*/{FILE}"))


@pytest.mark.timed
def test_hanging_disk_delays_neither_steps_nor_the_exit(train: Run) -> None:
    """Only the thread of the ledger waits for a file system that does not respond."""
    ended = train(HANGING + STEPS + "print('end', time.monotonic())\n", 0, 10, NEVER, env=RUN)
    *steps, end = ended.stdout.splitlines()
    assert max(durations("\n".join(steps)).values()) < limit(1)
    assert ended.at - float(end.split()[1]) < limit(EXIT)


def test_removed_folder_is_made_again(train: Run, tmp_path: Path) -> None:
    """If the folder disappears, the next heartbeat writes the whole run again, with its earlier attempts."""
    train(STEPS, 0, 3, NEVER, env=RUN)
    before = the_run(tmp_path)
    remove = "import shutil\nif step == first + 5: shutil.rmtree('spool/ledgers')\n"
    script = STEPS + "".join(f"    {line}\n" for line in remove.splitlines())
    train(script, 3, 20, NEVER, env=RUN)
    run = the_run(tmp_path)
    assert (2, True) == (run.attempts, run.ended)
    assert run.activities["startup"] > before.activities["startup"]


GROUP = """\
import types
def initialize(rank):
    module = types.ModuleType("torch.distributed")
    module.is_available = module.is_initialized = lambda: True
    module.get_rank, module.get_world_size = lambda: rank, lambda: 2
    sys.modules["torch.distributed"] = module
"""


def test_rank_that_becomes_known_later_gives_the_file_back(train: Run, tmp_path: Path) -> None:
    """A process that turns out to be rank 1 restores the file, for the process that is rank zero."""
    late = GROUP + STEPS.replace("time.sleep(0.04)", "time.sleep(0.2)\n    initialize(1)")
    train(late, 0, 4, NEVER, env=RUN)
    assert [] == list((tmp_path / "spool" / LEDGERS).glob("*"))
    train(GROUP + STEPS.replace("time.sleep(0.04)", "time.sleep(0.2)\n    initialize(0)"), 0, 4, NEVER, env=RUN)
    (path,) = (tmp_path / "spool" / LEDGERS).glob(f"*/{FILE}")
    before = json.loads(path.read_bytes())
    train(late, 0, 4, NEVER, env=RUN)
    assert before == json.loads(path.read_bytes())
    assert [path.parent.name] == names(path.parent.parent)


def test_exporter_of_an_application_stores_the_ledger(train: Run, tmp_path: Path) -> None:
    """A job whose providers are its own, or that has no set-up code, has a ledger, too."""
    script = """\
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
provider = MeterProvider([PeriodicExportingMetricReader(monitel_otlp.MetricExporter())])
monitel.set_step(int(sys.argv[1]))
time.sleep(0.1)
"""
    env = {**RUN, "MONITEL_SPOOL_DIR": "spool"}
    train(script, 7, env=env)
    train(script, 7, env=env)
    run = the_run(tmp_path)
    assert ("run-7", 2, True) == (run.run, run.attempts, run.ended)
    assert seconds(run, "lost") > 0.09
