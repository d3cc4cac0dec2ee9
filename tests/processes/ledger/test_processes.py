"""The ledger of a process from its start to its end, after exec and after forks, and the last values of its run."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.checks import wait_until
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, started, write_script

from monitel.console.runs import read_runs

TICK_NS = 10**10 // os.sysconf("SC_CLK_TCK") // 10
PRINT = """
import json, monitel
book = monitel.ledger()
print(json.dumps([book.elapsed_ns, dict(book.activities), book.start_ns, book.origin]))
"""
SAY = """\
import os, sys, threading
import monitel

def say(*words):  # unbuffered, so that no fork copies what another process has said
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def totals():
    return {each.counter.attributes["training.activity"]: each.total for each in monitel.counters()}

"""


def printed(*command: str) -> tuple[Any, int, int]:
    before_ns = time.time_ns()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout), before_ns, time.time_ns()


def lines(run: Run, script: str) -> list[str]:
    """Return the lines that a script says; it must end well, and print nothing else."""
    ended = run("-c", SAY + script)
    assert "" == ended.stderr
    return ended.stdout.splitlines()


def test_startup_begins_with_the_process() -> None:
    """The 0.3 s before the import count, and what ran in the process before an exec, as a launcher's script does."""
    script = "import threading; threading.Event().wait(0.3)" + PRINT
    (elapsed_ns, activities, start_ns, origin), before_ns, after_ns = printed(sys.executable, "-c", script)
    assert ("process", {"startup": elapsed_ns}) == (origin, activities)
    assert 300_000_000 <= elapsed_ns <= after_ns - before_ns + TICK_NS
    assert before_ns - TICK_NS <= start_ns <= after_ns - 300_000_000
    (elapsed_ns, *_), _, _ = printed("sh", "-c", 'sleep 0.3; exec "$0" -c "$1"', sys.executable, PRINT)
    assert elapsed_ns >= 300_000_000


FORKS = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 warns of a fork beside threads
made = monitel.activity("evaluation")

def child():
    say(monitel.ledger(), totals(), monitel.training.activities.position())
    made.__exit__(None, None, None)  # the parent's
    monitel.training.activities.begin_shutdown()
    say(monitel.ledger())
    monitel.set_step(3)
    with monitel.activity("data"):
        say(monitel.ledger().current, monitel.training.activities.position()[0] == threading.get_ident())
    book = monitel.ledger()
    say(book.origin, *book.activities, book.elapsed_ns == sum(book.activities.values()), sum(totals().values()) < 1000)

def fork():
    if os.fork() == 0:
        child()
        os._exit(0)
    os.wait()

monitel.set_step(1)
monitel.training.counters.continue_run(monitel.training.counters.Past(10**9, 10**9, 10**9))
monitel.training.counters.repeat(10**18)
with made:
    fork()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    say(monitel.ledger().current, monitel.ledger().origin)
"""


def test_forked_child_has_a_ledger_from_its_first_step_on(run: Run) -> None:
    """A worker has none; a child that trains has its own since the fork, in any thread. The parent's goes on."""
    child = ["None {} (0, '', 0)", "None", "data True", "fork startup data step True True"]
    assert [*child, *child, "evaluation process"] == lines(run, FORKS)


SHUTDOWN = """
import atexit
from monitel import run_events

@atexit.register
def last():
    say(monitel.ledger().current)

class Late:
    def __del__(self):
        with self.activity:
            self.found.append(self.ledger())

late = Late()
late.activity, late.ledger, late.found = monitel.activity("data"), monitel.ledger, []
late.cycle = late
sys.late = late

def forever():
    while True:
        with monitel.activity("data"):
            monitel.ledger()
            monitel.counters()

for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
run_events.enter(object(), enabled=False)
monitel.set_step(1)
with monitel.activity("evaluation"):
    sys.exit()
"""


def test_shutdown_lasts_from_the_exit_on(run: Run) -> None:
    """The exit inside an activity too; and the end of the interpreter is quiet."""
    assert ["shutdown"] == lines(run, SHUTDOWN)


CHECKPOINTS = """
from monitel.training.checkpoints import SAVE, Checkpoint

monitel.register_event_handler(lambda event: say(os.getpid() != parent, event.data["checkpoint.path"]))
parent = os.getpid()
with Checkpoint(SAVE, "parent"):
    if os.fork() == 0:
        with Checkpoint(SAVE, "child"):
            pass
        os._exit(0)
    os.wait()
"""


def test_fork_within_a_checkpoint(run: Run) -> None:
    """The child's checkpoints are not part of the parent's."""
    assert ["True child", "False parent"] == lines(run, CHECKPOINTS)


RUN = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7"}


def test_disk_that_hangs_delays_no_step(train: Run) -> None:
    """Only the thread of the ledger waits."""
    hang = "from monitel.runs import ledger\nledger.open_run = lambda *_: time.sleep(3600)\n"
    steps = "for step in range(20):\n    monitel.set_step(step)\n    time.sleep(0.01)\nos._exit(0)\n"
    train(f"{hang}monitel_otlp.configure(spool_dir='spool')\n{steps}")


AGGREGATIONS = """\
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, series_limit=3):
    with monitel.testing.ManualClock() as clock:
        every = Stat("every", list(monitel.Aggregation), 60.0, unit="s", attributes={"split": "train"})
        for number in range(5):
            monitel.Stat("many", [monitel.VALUE], 60.0, attributes={"layer": number}).add(number)
        for sample in (4.0, 1.0, 3.0, 2.0):
            every.add(100)
            clock.advance(60)
            every.add(sample)
            every.add(sample + 1)
            clock.advance(60)
    monitel.log({"accuracy": 0.5}, split="val")
    monitel.log({"accuracy": 0.75}, split="val")
    monitel.config({"a": {"b": [1, {"c": 2}], "d": None}})
    monitel.config({"a": {"e": True}, "rate": 0.5})
    monitel.set_step(7)
    time.sleep(0.01)
"""


def test_values_are_those_that_are_exported(train: Run, receiver: Receiver, tmp_path: Path) -> None:
    """The last point of each series, as a backend has it, is in the file; internal metrics and overflows are not."""
    train(AGGREGATIONS, receiver.url, env=RUN)
    (run,) = read_runs(tmp_path / "spool", [])
    values = run.values
    found = {(each.name, each.attributes): each.value for each in values.values}
    points = [each for each in receiver.all_points() if each.scope == "monitel" and each.kind in {"gauge", "sum"}]
    sent = {(each.metric, tuple(sorted(each.attributes.items()))): each.value for each in points}
    assert {key: sent[key] for key in found} == found
    missing = {name for name, _ in sent.keys() - found.keys()}
    assert {"many.value"} == {name for name in missing if not name.startswith(("monitel.", "training."))}
    assert 0.75 == found["accuracy", (("split", "val"),)]
    assert {"a.b": '[1, {"c": 2}]', "a.d": None, "a.e": True, "rate": 0.5} == values.config


FIRST_MINUTE = """\
pipeline = monitel_otlp.configure(spool_dir="spool")
loss, diverged = Stat("loss", [MEAN, SUM], 1e7), Stat("diverged", [SUM], 0.01)
monitel.set_step(1)
loss.add(0.5)
diverged.add(float("nan"))
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


def test_first_minute_of_a_killed_run_has_its_values(tmp_path: Path) -> None:
    """The open window is stored, too: its values are there without the record of the process. A sum of NaN is NaN."""
    script = write_script(tmp_path, FIRST_MINUTE)

    def values() -> dict[str, float]:
        return {each.name: each.value for run in read_runs(tmp_path / "spool", []) for each in run.values.values}

    with started(tmp_path, script, env=RUN) as process:
        wait_until(lambda: {"loss.mean", "diverged.sum"} <= values().keys())
        finish(process, "\n")
    assert (0.5, False) == (values()["loss.mean"], "loss.sum" in values())
    assert math.isnan(values()["diverged.sum"])
