"""A forked child: it waits for no lock of the parent's threads, and starts empty."""

import os
from typing import Any

import pytest

RunScript = Any

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


def test_counters_and_waits_start_at_zero(run_script: RunScript) -> None:
    """With a later start, the same objects, and new locks; a wait of the forking thread goes on in the child."""
    ended = run_script("""
counter = monitel.counter("samples", unit="{sample}", attributes={"split": "train"})
counter.add(100)
before, entered, done = counter.reading().start_ns, threading.Event(), threading.Event()
wait = monitel.WaitCounter("wait")
with wait.guard():
    pass

def in_wait():
    with wait.guard():
        entered.set()
        done.wait()

thread = threading.Thread(target=in_wait)
thread.start()
entered.wait()
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

with wait.guard():
    if (pid := os.fork()) == 0:
        say(counter.total, counter.reading().start_ns > before, monitel.wait_counters()["wait"].active)
    else:
        os.waitpid(pid, 0)
        say(counter.total, counter.reading().start_ns == before, monitel.wait_counters()["wait"].active)
        done.set()
        thread.join()
added = threading.Thread(target=counter.add, args=(3,))
added.start()
added.join()
reading = monitel.wait_counters()["wait"]
same = counter is monitel.counter("samples", attributes={"split": "train"})
say(counter.total, same, reading.count, reading.active)
os._exit(0)
""")
    assert ["0 True 1", "3 True 1 0", "100 True 2", "103 True 3 0"] == ended.lines


def test_foreign_waits_and_functions_before_a_flush_stay_in_the_parent(run_script: RunScript) -> None:
    """The child has others: those of the parent would count what the parent has counted."""
    ended = run_script("""
monitel.wait_counter.set_foreign_waits({"elsewhere": monitel.WaitReading(2, 3.0, 2.0, 1)})
monitel.stats.before_flush.register(lambda: say("of the parent"))
if (pid := os.fork()) == 0:
    monitel.stats.before_flush.register(lambda: say("of the child"))
    monitel.flush()
    say("child", *monitel.wait_counters())
    os._exit(0)
os.waitpid(pid, 0)
monitel.flush()
say("parent", *monitel.wait_counters())
os._exit(0)
""")
    assert ["of the child", "child", "of the parent", "parent elsewhere"] == ended.lines
