"""The ledger of a process: from its start to its end, after exec, and after forks."""

import json
import os
import subprocess
import sys
import time
from typing import Any

from tests.support.scripts import Run

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
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    say(book.current)
    with monitel.activity("checkpoint.save"):
        say(monitel.ledger().current)
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
    """The exit inside an activity too; a last checkpoint counts as one, and the end of the interpreter is quiet."""
    assert ["shutdown", "checkpoint.save", "shutdown"] == lines(run, SHUTDOWN)


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
