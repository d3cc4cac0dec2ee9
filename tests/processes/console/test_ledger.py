"""Processes that are attempts of one run, and those that are not; the end of a process is not a step."""

from pathlib import Path

import pytest
from tests.processes.console.jobs import Console
from tests.processes.promises.recorded_runs import END, HOLD, JOB, environment, held, run_of
from tests.support.checks import wait_until
from tests.support.scripts import READY, Run, finish, started, write_script
from tests.support.spools import names

RUN = environment("run-7")
LEDGERS = Path("spool/ledgers")


def test_automatic_count_loses_nothing(train: Run, console: Console) -> None:
    """A source that counts from 1 in each process does not make the steps of earlier attempts repeated ones."""
    counted = JOB.replace("monitel.set_step(step)", "sys.modules['monitel.training.step'].advance(step)") + END
    for _ in range(2):
        train(counted, 1, 7, 0.02, 0.5, env=RUN)
    run = run_of(console, "run-7")
    assert (2, False) == (run["attempts"], "repeated" in run["activities"])
    train(JOB + END, 4, 1, 0.02, 0.5, env=RUN)
    # The first attempt has counted from the start of the run, so most of its steps 4 to 7 is known, without data.
    repeated = run_of(console, "run-7")["activities"]["repeated"]
    assert 2 * 0.015 < repeated < run["activities"]["step"]


def test_overlap_of_two_attempts_is_counted_once(console: Console, tmp_path: Path) -> None:
    """An attempt that begins before the end of the earlier one takes over when that ends."""
    script = write_script(tmp_path, JOB + HOLD)
    with started(tmp_path, script, 0, 2, 0.01, 0.5, env=RUN) as first:
        held(first)
        with started(tmp_path, script, 5, 2, 0.01, 0.5, env=RUN) as second:
            held(second)
            finish(first, "\n")
            wait_until(lambda: 2 == run_of(console, "run-7")["attempts"], "a second attempt")
            finish(second, "\n")
    run = run_of(console, "run-7")
    assert (2, False, False) == (run["attempts"], "down" in run["activities"], "repeated" in run["activities"])


def test_forked_child_does_not_keep_the_run(train: Run, console: Console, tmp_path: Path) -> None:
    """A child that lives longer than its parent, such as an orphaned worker, does not block the next attempt."""
    fork = "if not os.fork():\n    sys.stdin.readline()\n    os._exit(0)\n"
    script = write_script(tmp_path, JOB + fork + "pipeline.shutdown()\n" + READY + "os.kill(os.getpid(), 9)\n")
    with started(tmp_path, "-W", "ignore", script, 0, 3, 0.01, 0.5, env=RUN) as first:
        assert first.stdout is not None
        assert "ready\n" in iter(first.stdout.readline, "")
        first.wait(60)
        train(JOB + END, 3, 1, 0.01, 0.5, env=RUN)
    assert 2 == run_of(console, "run-7")["attempts"]


def test_parent_that_lives_as_long_as_the_run_is_not_an_attempt(train: Run, console: Console, tmp_path: Path) -> None:
    """A process that starts the ranks with its own environment neither blocks their ledger nor counts."""
    child = tmp_path / "child.py"
    child.write_text("import monitel, monitel_otlp, os, sys, time\nfrom monitel import *\n" + JOB + END)
    parent = (
        "import subprocess\npipeline = monitel_otlp.configure(spool_dir='spool')\n"
        "sys.exit(subprocess.run([sys.executable, sys.argv[1], '0', '5', '0.3', '0.5']).returncode)\n"
    )
    ended = train(parent, child, env=RUN)
    assert "cannot be stored" not in ended.stderr
    assert 1 == run_of(console, "run-7")["attempts"]


PARENT = """\
import multiprocessing, sys, time

def work(steps, seconds):
    time.sleep(seconds)
    sys.argv[1:] = ["0", steps, "0.05", "0.5"]
    exec(open("child.py").read())

fork = multiprocessing.get_context("fork")
late = float(sys.argv[1])
children = [fork.Process(target=work, args=args) for args in (("6", 0), ("18", late))]
for each in children:
    each.start()
for each in children:
    each.join()
"""


@pytest.mark.parametrize("late", [0, 1.5])
def test_first_of_several_children_has_the_ledger(run: Run, console: Console, tmp_path: Path, late: float) -> None:
    """Their parent has not imported monitel: they do not fight for it, nor is the second one an attempt.

    Nor if it trains when the first one has ended: it began before.
    """
    imports = "import monitel, monitel_otlp, time\nfrom monitel import *\n"
    (tmp_path / "child.py").write_text(f"{imports}{JOB}pipeline.shutdown(30)\n")
    (tmp_path / "parent.py").write_text(PARENT)
    ended = run(tmp_path / "parent.py", late, env=RUN)
    assert "cannot be stored" not in ended.stderr
    assert 1 == run_of(console, "run-7")["attempts"]


GROUP = """\
import types
from monitel.runs import ledger
ledger.HEARTBEAT = 0.03
def initialize(rank):
    module = types.ModuleType("torch.distributed")
    module.is_available = module.is_initialized = lambda: True
    module.get_rank, module.get_world_size = lambda: rank, lambda: 2
    sys.modules["torch.distributed"] = module
"""


def test_rank_that_becomes_known_later_gives_the_file_back(train: Run) -> None:
    """A process that turns out to be rank 1 restores the files, for the process that is rank zero."""
    late = GROUP + JOB.replace(
        "monitel.set_step(step)\n", "monitel.set_step(step)\n    initialize({})\n    time.sleep(0.2)\n"
    )
    train(late.replace("{}", "1", 1), 0, 3, 0.01, 0.5, env=RUN)
    assert [] == [*LEDGERS.glob("*")]
    train(late.replace("{}", "0", 1), 0, 3, 0.01, 0.5, env=RUN)
    (path,) = LEDGERS.glob("*/ledger.json")
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    train(late.replace("{}", "1", 1), 0, 3, 0.01, 0.5, env=RUN)
    assert before == {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert [path.parent.name] == names(LEDGERS)


def test_full_disk_is_logged_once(train: Run) -> None:
    """The job runs on without its ledger."""
    full = (
        "import errno\nfrom monitel.runs import folder, ledger\nledger.HEARTBEAT = 0.03\n"
        'def encode(history): raise OSError(errno.ENOSPC, "No space left on device")\nfolder.encode = encode\n'
    )
    ended = train(full + JOB + END, 0, 10, 0.02, 0.5, env=RUN)
    assert 1 == ended.stderr.count("the ledger of the run cannot be stored: [Errno 28]")
    assert [] == [*LEDGERS.glob("*/ledger.json")]


#: An event handler that takes 0.5 s at the end of the run.
SLOW = """\
import atexit, threading
def wait(event):
    if event.name == "run.ended":
        time.sleep(0.5)
def train():
    monitel.register_event_handler(wait)
    begin = time.monotonic_ns()
    monitel.set_step(1)
    time.sleep(0.2)
    return time.monotonic_ns() - begin
"""
CONFIGURE = 'monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": "run-7"})'
ENDS = {
    "with": f"with {CONFIGURE}:\n    ns = train()\nprint(ns)\n",
    "exit": f"{CONFIGURE}\nprint(train())\n",
    "exit function": f"{CONFIGURE}\natexit.register(time.sleep, 0.5)\nprint(train())\n",
    "waiting for a thread": f"{CONFIGURE}\nprint(train())\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n",
    "another thread has trained": (
        f"{CONFIGURE}\nthread = threading.Thread(target=lambda: print(train()))\nthread.start()\nthread.join()\n"
        "atexit.register(time.sleep, 0.5)\n"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_everything_after_the_training_is_shutdown(train: Run, console: Console, end: str) -> None:
    """The handler of the last event, waiting for threads, and the functions of the exit are not productive."""
    events = "1" if end in {"with", "exit"} else "0"
    ended = train(SLOW + ENDS[end], env={"MONITEL_RUN_EVENTS": events})
    activities = run_of(console, "run-7")["activities"]
    assert {"startup", "step", "shutdown"} == {*activities}
    assert activities["shutdown"] >= (0.3 if end == "waiting for a thread" else 0.5)  # it has slept for a moment before
    assert activities["step"] - int(ended.stdout) / 1e9 < 0.5 + activities["shutdown"]
    assert activities["step"] >= 0.2


def test_thread_that_outlives_the_main_thread_still_trains(train: Run, console: Console) -> None:
    """The end of the main thread is not the end of the training."""
    script = "def train():\n    monitel.set_step(1)\n    time.sleep(0.5)\n"
    train("import threading\n" + script + f"{CONFIGURE}\nthreading.Thread(target=train).start()\n")
    activities = run_of(console, "run-7")["activities"]
    assert (True, True) == (activities["step"] >= 0.5, "shutdown" in activities)
