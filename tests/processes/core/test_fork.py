"""Forks and multiprocessing: samples count once, children work, and log their windows at exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    RunScript = Any

SAY = """
main = os.getpid()
def who():
    return "parent" if os.getpid() == main else "child"
monitel.register_event_handler(
    lambda event: say(who(), {key: int(value) for key, value in event.data.items()}, event.window.discarded)
)
"""


def test_child_starts_with_empty_windows(run_script: RunScript) -> None:
    """In a forked child open windows are empty and handlers remain; samples count once, in the parent."""
    ended = run_script(
        SAY
        + """
open_ = Stat("open", [COUNT, SUM], 3600.0)
full = Stat("full", [SUM], 3600.0, 2)
open_.add(1)
open_.add(2)
for sample in (1, 2, 3):
    full.add(sample)
if os.fork() == 0:
    say("child", open_.count, full.discarded)
    monitel.flush()
    open_.add(10)
    for sample in (10, 20, 30, 40):  # its own budget
        full.add(sample)
    say("child", open_.count, full.discarded)
    sys.exit()
os.wait()
say("parent", open_.count, full.discarded)
"""
    )
    assert [
        "parent {'full.sum': 3} 0",
        "child 0 0",
        "child {'full.sum': 30} 0",
        "child 1 2",
        "child {'open.count': 1, 'open.sum': 10} 0",
        "parent 2 1",
        "parent {'open.count': 2, 'open.sum': 3} 0",
    ] == ended.lines


def test_destruction_in_a_child(run_script: RunScript) -> None:
    """A Stat that a child inherits and drops logs nothing of the parent's."""
    ended = run_script(
        SAY
        + """
stat = Stat("x", [SUM], 3600.0)
stat.add(1)
if os.fork() == 0:
    del stat
    say("child dropped it")
    sys.exit()
os.wait()
"""
    )
    assert ["child dropped it", "parent {'x.sum': 1} 0"] == ended.lines


def test_os_exit_in_a_child_logs_nothing(run_script: RunScript) -> None:
    """A child that ends with os._exit() logs nothing; the parent continues."""
    ended = run_script(
        SAY
        + """
stat = Stat("x", [SUM], 3600.0)
if os.fork() == 0:
    stat.add(1)
    os._exit(0)
os.wait()
stat.add(2)
"""
    )
    assert ["parent {'x.sum': 2} 0"] == ended.lines


def test_child_of_a_child(run_script: RunScript) -> None:
    """Each process logs its own samples."""
    ended = run_script(
        SAY
        + """
stat = Stat("x", [SUM], 3600.0)
for sample in (1, 2, 3):
    stat.add(sample)
    if sample < 3:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            break
"""
    )
    assert ["child {'x.sum': 3} 0", "child {'x.sum': 2} 0", "parent {'x.sum': 1} 0"] == ended.lines


FORK_MEANWHILE = """
inside, go_on = threading.Event(), threading.Event()

def pause():
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        go_on.wait(30)

def fork_meanwhile(function, in_child):
    thread = threading.Thread(target=function)
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        within(20, in_child)
        say("child went on")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    go_on.set()
    thread.join(30)
"""


def test_fork_while_a_handler_runs(run_script: RunScript) -> None:
    """A child that is forked while another thread runs a handler can log (torch: it hangs)."""
    ended = run_script(
        SAY
        + FORK_MEANWHILE
        + """
stat = Stat("x", [SUM], 3600.0, 2)
handle = monitel.register_event_handler(lambda event: pause())

def full():
    stat.add(1)
    stat.add(2)

def in_child():
    full()
    monitel.unregister_event_handler(handle)
    monitel.stat("y").add(1)
    monitel.flush()

fork_meanwhile(full, in_child)
"""
    )
    y = "{'y.value': 1, 'y.mean': 1, 'y.count': 1, 'y.sum': 1, 'y.max': 1, 'y.min': 1}"
    assert ["parent {'x.sum': 3} 0", "child {'x.sum': 3} 0", f"child {y} 0", "child went on"] == ended.lines


def test_fork_within_an_add(run_script: RunScript) -> None:
    """A child that is forked while another thread is inside add() has new locks and can add to the same Stat."""
    ended = run_script(
        SAY
        + FORK_MEANWHILE
        + """
class Slow(monitel.testing.ManualClock):
    def time_ns(self):  # called where a window closes
        pause()
        return super().time_ns()

with Slow() as clock:
    stat = Stat("x", [SUM], 60.0)
stat.add(1)
clock.advance(60)

def in_child():
    stat.add(10)
    clock.advance(60)
    stat.add(20)
    monitel.flush()

fork_meanwhile(lambda: stat.add(2), in_child)
"""
    )
    child = ["child {'x.sum': 10} 0", "child {'x.sum': 20} 0", "child went on"]
    assert [*child, "parent {'x.sum': 1} 0", "parent {'x.sum': 2} 0"] == ended.lines


@pytest.mark.parametrize("lock", ["handlers", "registry", "wait_counter"])
def test_locks_are_new_in_a_child(run_script: RunScript, lock: str) -> None:
    """A lock that another thread holds during the fork is free in the child."""
    ended = run_script(
        SAY
        + FORK_MEANWHILE
        + f"""
from monitel import {lock} as module

def hold():
    with module._lock:
        pause()

def in_child():
    with monitel.register_event_handler(print), monitel.WaitCounter("wait").guard():
        monitel.stat("y").add(1)

fork_meanwhile(hold, in_child)
"""
    )
    assert ["child went on"] == ended.lines


CHILD = """
import multiprocessing
monitel.register_event_handler(
    lambda event: say(multiprocessing.current_process().name, event.window.name, int(event.window.sum))
)
stat = Stat("module", [SUM], 3600.0)

def work(how):
    global late
    late = Stat("late", [SUM], 3600.0)
    late.add(2)
    stat.add(3)
    if how == "raise":
        raise ValueError("why")
    if how == "exit":
        sys.exit(3)

if __name__ == "__main__":
    stat.add(1)
    context = multiprocessing.get_context(METHOD)
    child = context.Process(target=work, args=[HOW], name="child")
    child.start()
    child.join()
    say("exit code", child.exitcode)
"""
METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize(("how", "exitcode"), [("return", 0), ("raise", 1), ("exit", 3)])
@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_children_log_at_their_end(run_script: RunScript, method: str, how: str, exitcode: int) -> None:
    """Live Stats of a multiprocessing child are flushed at its end, once, however it ends (torch: never)."""
    ended = run_script(CHILD.replace("METHOD", repr(method)).replace("HOW", repr(how)))
    assert ["child module 3", "child late 2", f"exit code {exitcode}", "MainProcess module 1"] == ended.lines


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_queue_takes_the_last_windows(run_script: RunScript, method: str) -> None:
    """Items that a child's handler puts on a multiprocessing.Queue at exit still arrive."""
    ended = run_script(
        f"""
import multiprocessing

def work(queue):
    global stat
    queue.put("started")
    monitel.register_event_handler(lambda event: queue.put(event.data))
    stat = Stat("x", [SUM], 3600.0)
    stat.add(1)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    child = context.Process(target=work, args=[queue])
    child.start()
    say(queue.get(timeout=30), queue.get(timeout=30))
    child.join()
"""
    )
    assert ["started {'x.sum': 1.0}"] == ended.lines


@pytest.mark.parametrize("order", ["import multiprocessing.util, monitel", "import monitel, multiprocessing"])
def test_multiprocessing_is_found_whenever_imported(run_script: RunScript, order: str) -> None:
    """Children and their children flush, whichever of monitel and multiprocessing was imported first."""
    ended = run_script(
        f"""
import subprocess
child = '''
{order}
import os

def say(event):
    os.write(1, (multiprocessing.current_process().name + " " + str(event.data) + chr(10)).encode())

def work(depth):
    global stat
    stat = monitel.Stat("x", [monitel.SUM], 3600.0)
    stat.add(depth)
    if depth < 2:
        start(depth + 1)

def start(depth):
    child = multiprocessing.get_context("fork").Process(target=work, args=[depth], name=f"child {{depth}}")
    child.start()
    child.join()

monitel.register_event_handler(say)
start(1)
'''
subprocess.run([sys.executable, "-c", child], check=True)
"""
    )
    assert ["child 2 {'x.sum': 2.0}", "child 1 {'x.sum': 1.0}"] == ended.lines


def test_pool_workers_log_when_the_pool_is_closed(run_script: RunScript) -> None:
    """Workers of a process pool log at their end, and only then."""
    ended = run_script(
        """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing

def work(sample):
    stat.add(sample)
    return stat.count

stat = Stat("x", [COUNT, SUM], 3600.0)
monitel.register_event_handler(lambda event: say("worker", int(event.window.count), int(event.window.sum)))
with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    say("counts", list(pool.map(work, [1, 2, 3])))
"""
    )
    assert ["counts [1, 2, 3]", "worker 3 6"] == ended.lines
