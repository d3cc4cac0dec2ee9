"""The end of ``monitel run``: the verdict, where the time went, and what happened to the telemetry."""

import re
from pathlib import Path

import pytest
from tests.processes.console.commands import RUN, outcome, record
from tests.processes.console.jobs import Console
from tests.processes.patience import patience
from tests.support.receiver import Receiver

#: A program that starts four ranks of 400 steps with known stages, of which rank 2 is late by 30 ms in data.
JOB = """\
import os, subprocess, sys
if len(sys.argv) == 1:
    size = {"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run-7"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank)], env={**os.environ, "RANK": str(rank), **size})
        for rank in range(4)
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))
import monitel
rank = int(sys.argv[1])
times = {"optimizer": 5, "data": 40 if rank == 2 else 10, "forward": 28, "backward": 62, "sync": 0 if rank == 2 else 30}
stages = {
    stage: monitel.Stat("training.stage.duration", [monitel.MEAN], 1e9, unit="s", attributes={"training.stage": stage})
    for stage in times
}
duration = monitel.Stat("training.step.duration", [monitel.MEAN, monitel.COUNT], 1e9, unit="s", monotonic=True)
for step in range(1, 401):
    monitel.set_step(step)
    for stage, milliseconds in times.items():
        stages[stage].add(milliseconds / 1000)
    duration.add(0.125)
monitel.counter("training.steps").add(400)
"""


def run(script: str, *options: str, status: int = 0, **env: str) -> str:
    ended = record(script, "--service-name", "job", *options, **env)
    assert (status, "", "") == (ended.status, ended.stdout, ended.stderr)
    return ended.words


def test_late_rank_is_in_the_summary(receiver: Receiver) -> None:
    """Steps and rate, the verdict, the ledger, the late rank, and what was exported; nothing is on disk or lost."""
    summary = run(JOB + patience(), "--endpoint", receiver.url)
    assert "monitel run: job, run run-7, 4 ranks, 400 steps, 8 steps/s verdict " in summary
    assert "verdict late rank: rank 2 takes 30.0 ms longer than the others in data (22 % of each step)" in summary
    (ledger,) = re.findall(r"ledger [^(]+\(([^)]+)\); \d+ % of the time went into ", summary)
    assert 100 == pytest.approx(sum(map(int, re.findall(r"(\d+) %", ledger))), abs=2)
    assert "; of each step: 22 % waiting for other ranks, 7 % waiting for data " in summary, "of rank zero"
    assert "exported 24 windows and numbers, 0 events" in summary, "five stages and the step duration of four ranks"
    assert not re.search("on disk|lost|died|missing", summary)


def test_exit_status_that_only_the_parent_knows_is_that_of_the_run(console: Console) -> None:
    """A process cannot see the code of a SystemExit that it raises itself: its parent stores that it has failed."""
    summary = run("import monitel\nmonitel.set_step(1)\nraise SystemExit(3)\n", status=3)
    assert re.search(r"verdict failed: process \d+ failed at step 1: exit status 3 ", summary)
    (found,) = console.json("runs")["runs"]
    assert "failed" == found["state"]


def test_exception_that_is_not_an_error_is_named_if_it_ends_the_program() -> None:
    ended = record("import asyncio, monitel\nmonitel.set_step(1)\nraise asyncio.CancelledError('why')\n")
    assert re.search(r"failed at step 1: asyncio\S*CancelledError: why \(\S*train.py:3\)", ended.words)


def test_printed_commands_work(receiver: Receiver) -> None:
    """In any folder: ``autopsy`` shows the killed process, and ``replay`` delivers everything that is on disk."""
    summary = run(
        "import monitel, os\nmonitel.set_step(7)\nmonitel.emit('before')\nos.kill(os.getpid(), 9)\n", status=-9
    )
    assert "verdict dead: process" in summary
    autopsy = re.findall(r"monitel (autopsy \S+)", summary)[0]
    shown = outcome([*RUN[:-2], *autopsy.split()], cwd="/")
    assert (0, True) == (shown.status, "killed by SIGKILL" in " ".join(shown.stdout.split()))
    (replay,) = re.findall(r"deliver with: monitel (replay \S+ --endpoint) http://HOST:4318", summary)
    ended = outcome([*RUN[:-2], *replay.split(), receiver.url], cwd="/")
    assert 0 == ended.status, ended.stderr + ended.summary
    assert ["attempt.ended", "attempt.started", "before", "process.died"] == sorted(receiver.record_names())
    died, last = (receiver.records(name)[0].attributes for name in ("process.died", "attempt.ended"))
    facts = ("process.exit.reason", "process.exit.signal", "process.exit.time.source", "training.step")
    assert ("signal", "SIGKILL", "parent", 7) == tuple(died[name] for name in facts)
    assert ("SIGKILL", "killed by SIGKILL") == (last["process.exit.signal"], last["attempt.first_death"])
    assert {"ledgers"} >= {path.name for path in Path("state/monitel").iterdir()}  # stored once a second


def test_process_that_is_killed_before_its_report_is_counted() -> None:
    """SIGTERM of a Pool may end a worker between the end of its record and its report: its items are on disk."""
    script = """
import os, sys, warnings, monitel, monitel_otlp.pipeline as pipeline
warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 warns of a fork beside threads
if not (pid := os.fork()):
    pipeline.store_end = lambda *_, **__: os.kill(os.getpid(), 15)
    for _ in range(5):
        monitel.emit("of the worker")
    sys.exit()
os.waitpid(pid, 0)
monitel.emit("done")
"""
    summary = run(script, MONITEL_RUN_EVENTS="false")
    replay = f"monitel replay {Path('state/monitel').resolve()}"
    assert f"monitel.torch.instrument() on disk 6 items, deliver with: {replay}" in summary


def test_worker_of_a_fork_server_is_a_helper() -> None:
    """Its parent is the server, which is not recorded; the process that has started both is."""
    script = """
import multiprocessing, monitel, monitel_otlp
monitel_otlp.configure(spool_dir="spool", service_name="job")
if __name__ == "__main__":
    monitel.set_step(1)
    worker = multiprocessing.get_context("forkserver").Process(target=monitel.emit, args=("worker",))
    worker.start()
    worker.join()
"""
    ended = record(script)
    assert (0, True) == (ended.status, "monitel run: job, 1 step" in ended.words)
    assert not re.search("died|ended", ended.words)


@pytest.mark.parametrize(
    ("data", "verdict"), [(0.02, "input-bound: "), (0.0, "healthy: ")], ids=["waits for data", "healthy"]
)
def test_verdict_about_a_plain_loop(data: float, verdict: str) -> None:
    """Without torch and without ranks, from the ledger of the process. Steps begin again in each epoch."""
    script = f"""
import time, monitel
for step in 2 * [*range(1, 21)]:
    monitel.set_step(step)
    with monitel.activity("data"):
        time.sleep({data})
    time.sleep(0.02)
"""
    summary = run(script)
    assert "monitel run: job, 40 steps" in summary
    assert f"verdict {verdict}" in summary
