"""Windows of both twins at the exit and in forked children, without an exporter: samples count once."""

from collections.abc import Callable

import pytest

RunScript = Callable[[str], list[str]]

SAY = """
main = os.getpid()
def who():
    return "parent" if os.getpid() == main else "child"
monitel.register_event_handler(
    lambda event: say(who(), {key: int(value) for key, value in event.data.items()}, event.window.discarded)
)
"""


def test_child_has_its_own_budget_and_no_samples_of_its_parent(run_script: RunScript) -> None:
    """Open windows are empty, and a Stat that is destroyed logs nothing; the parent's go on."""
    body = """
full, dropped = Stat("full", [SUM], 3600.0, 2), Stat("dropped", [SUM], 3600.0)
dropped.add(1)
for sample in (1, 2, 3):
    full.add(sample)
if os.fork() == 0:
    del dropped
    for sample in (10, 20, 30, 40):
        full.add(sample)
    say("child", full.discarded)
    sys.exit()
os.wait()
say("parent", full.discarded)
"""
    child, parent = ["child {'full.sum': 30} 0", "child 2"], ["parent 1", "parent {'dropped.sum': 1} 0"]
    assert ["parent {'full.sum': 3} 0", *child, *parent] == run_script(SAY + body)


def test_waits_in_a_child_are_those_of_the_thread_that_forks(run_script: RunScript) -> None:
    """A wait of another thread does not exist there, and those that a library counts are its parent's."""
    ended = run_script("""
wait, entered, done = monitel.WaitCounter("wait"), threading.Event(), threading.Event()
monitel.wait_counter.set_foreign_waits({"elsewhere": monitel.WaitReading(2, 3.0, 2.0, 1)})
monitel.stats.before_flush.register(lambda: say("of the parent"))

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
        monitel.stats.before_flush.register(lambda: say("of the child"))
    else:
        os.waitpid(pid, 0)
    monitel.flush()
    say({key: each.active for key, each in monitel.wait_counters().items()})
    if pid:
        done.set()
        thread.join()
    os._exit(0)
""")
    child, parent = ["of the child", "{'wait': 1}"], ["of the parent", "{'elsewhere': 1, 'wait': 2}"]
    assert [*child, *parent] == ended


def test_child_that_a_handler_forks_logs_no_window_of_its_parent(run_script: RunScript) -> None:
    """A flush has closed all windows before; the handlers of the parent receive them, even if the child goes on."""
    body = """
stats = [Stat(name, [SUM], 3600.0) for name in "ab"]
for stat in stats:
    stat.add(1)
monitel.register_event_handler(lambda event: "a.sum" in event.data and os.fork() and os.wait())
monitel.flush()
"""
    assert ["parent {'a.sum': 1} 0", "parent {'b.sum': 1} 0"] == run_script(SAY + body)


FORK_MEANWHILE = """
inside, go_on = threading.Event(), threading.Event()

def pause():
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        go_on.wait(60)

def fork_meanwhile(function, in_child):
    thread = threading.Thread(target=function)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        within(60, in_child)
        say("child went on")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    go_on.set()
    thread.join(60)
"""


def test_fork_within_an_add(run_script: RunScript) -> None:
    """A child that is forked while another thread is inside add() has new locks and can add to the same Stat."""
    script = """
def pause_inside(frame, event, called):  # as the Python add() closes a window, or where the C add() begins
    if (event, frame.f_code.co_name) == ("call", "_close_window") or (event, called) == ("c_call", stat.add):
        sys.setprofile(None)
        pause()

def add():
    sys.setprofile(pause_inside)
    stat.add(2)

with monitel.testing.ManualClock() as clock:
    stat = Stat("x", [SUM], 60.0)
stat.add(1)
clock.advance(60)

def in_child():
    stat.add(10)
    clock.advance(60)
    stat.add(20)
    monitel.flush()

fork_meanwhile(add, in_child)
"""
    child = ["child {'x.sum': 10} 0", "child {'x.sum': 20} 0", "child went on"]
    assert [*child, "parent {'x.sum': 1} 0", "parent {'x.sum': 2} 0"] == run_script(SAY + FORK_MEANWHILE + script)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_queue_of_multiprocessing_takes_the_last_windows(run_script: RunScript, method: str) -> None:
    """Items that a child's handler puts on a multiprocessing.Queue at its end still arrive."""
    script = f"""
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
    say(queue.get(timeout=60), queue.get(timeout=60))
    child.join()
"""
    assert ["started {'x.sum': 1.0}"] == run_script(script)


def test_sub_interpreters_are_refused(run_script: RunScript, twin: str) -> None:
    """Importing the C module in a sub-interpreter is an ImportError, and the main interpreter continues."""
    if twin == "py":
        pytest.skip("only the C module has state that interpreters would share")
    script = """
try:
    import _interpreters as interpreters  # 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

stat = Stat("x", [SUM], 3600.0)
other = interpreters.create()
try:
    failure = interpreters.run_string(other, "import monitel")
except interpreters.RunFailedError as error:
    failure = error
say(failure.formatted if hasattr(failure, "formatted") else failure)
interpreters.destroy(other)
stat.add(4)
"""
    ended = run_script(SAY + script)
    assert "ImportError" in ended[0]
    assert ["parent {'x.sum': 4} 0"] == ended[-1:]
