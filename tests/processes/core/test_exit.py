"""Exit of the process: all open windows are logged once, and the exit status is unchanged."""

from __future__ import annotations

from typing import Any

import pytest

RunScript = Any

SAY = """
monitel.register_event_handler(lambda event: say(event.window.name, int(event.window.sum)))
stat = Stat("x", [SUM], 3600.0)
stat.add(1)
stat.add(2)
"""


@pytest.mark.parametrize(
    ("end", "returncode"),
    [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", -2)],
)
def test_live_stats_are_logged_at_exit(run_script: RunScript, end: str, returncode: int) -> None:
    """Every live Stat is flushed however the interpreter exits, with the same exit code (torch: SIGSEGV, or no log)."""
    ended = run_script(SAY + end, returncode=returncode)
    assert ["x 3"] == ended.lines
    assert ("Error" in end or "1 / 0" in end or "raise" in end) == bool(ended.stderr)


def test_window_closed_by_the_exit(run_script: RunScript) -> None:
    """A window that the exit closes ends at that time."""
    ended = run_script(
        SAY
        + """
import time
before_ns = time.time_ns()
monitel.register_event_handler(lambda event: say(before_ns <= event.window.end_ns <= time.time_ns()))
"""
    )
    assert ["x 3", "True"] == ended.lines


def test_os_exit_logs_nothing(run_script: RunScript) -> None:
    """os._exit() skips the flush."""
    assert [] == run_script(SAY + "os._exit(0)").lines


@pytest.mark.parametrize("handle", ["", "handle = "])
@pytest.mark.parametrize("handler", ["print", "lambda event: print(event)"])
def test_exit_with_handlers_registered(run_script: RunScript, handle: str, handler: str) -> None:
    """The exit code is 0 with registered handlers, whether their handles are kept or not (torch: SIGSEGV)."""
    ended = run_script(f"{handle}monitel.register_event_handler({handler})\nmonitel.emit('said')")
    assert ("", 1) == (ended.stderr, len(ended.lines))
    assert "said" in ended.lines[0]


def test_stat_and_handler_in_two_modules(run_script: RunScript) -> None:
    """A Stat of one module is logged by the handler of another, even if their globals are cleared by then."""
    ended = run_script(
        """
import types
one, other = types.ModuleType("one"), types.ModuleType("other")
exec('''
import monitel
stat = monitel.Stat("kept", [monitel.SUM], 3600.0)
stat.add(4)
monitel.stat("registered").add(5)
''', one.__dict__)
other.say = say
exec('''
import monitel
monitel.register_event_handler(lambda event: say(event.window.name, int(event.window.sum)))
''', other.__dict__)
del other
"""
    )
    assert ["kept 4", "registered 5"] == ended.lines


def test_stats_in_a_reference_cycle(run_script: RunScript) -> None:
    """A Stat in a reference cycle that was never collected is logged at exit."""
    ended = run_script(SAY + "import gc; gc.disable(); cycle = [stat]; cycle.append(cycle); del cycle, stat")
    assert ["x 3"] == ended.lines


def test_handler_that_fails_at_exit(run_script: RunScript) -> None:
    """If a handler raises at exit, this is reported, other Stats are still logged, and the exit code is unchanged."""
    ended = run_script(
        SAY
        + """
others = [Stat(name, [SUM], 3600.0) for name in "abc"]
for other in others:
    other.add(1)

def fail(event):
    raise ValueError("fails for " + event.window.name)

monitel.register_event_handler(fail)
"""
    )
    assert ["x 3", "a 1", "b 1", "c 1"] == ended.lines
    assert [1] * 4 == [ended.stderr.count(f"ValueError: fails for {name}") for name in "xabc"]


def test_handler_that_logs_at_exit(run_script: RunScript) -> None:
    """A handler may log, register and use Stats at exit."""
    ended = run_script(
        """
late = Stat("late", [SUM], 3600.0, 1)

def handler(event):
    say(event.name, event.data)
    if event.window and event.window.name == "x":
        monitel.emit("seen", {"x": 1})
        with monitel.register_event_handler(lambda event: say("inner", event.data)):
            late.add(7)

monitel.register_event_handler(handler)
stat = Stat("x", [SUM], 3600.0)
stat.add(3)
"""
    )
    assert [
        "torch.monitor.Stat {'x.sum': 3.0}",
        "seen {'x': 1}",
        "torch.monitor.Stat {'late.sum': 7.0}",
        "inner {'late.sum': 7.0}",
    ] == ended.lines


def test_exit_functions_run_before_the_flush(run_script: RunScript) -> None:
    """Functions that were registered with atexit after the import run first, so that their samples are logged."""
    ended = run_script(
        SAY
        + """
import atexit

def shut_down():
    stat.add(10)
    monitel.flush()
    say("shut down")
    stat.add(20)

atexit.register(shut_down)
atexit.register(stat.add, 100)
"""
    )
    assert ["x 113", "shut down", "x 20"] == ended.lines


def test_threads_that_outlive_the_main_thread(run_script: RunScript) -> None:
    """Samples of a thread that the interpreter joins are logged, too."""
    ended = run_script(
        SAY
        + """
def work():
    threading.main_thread().join(30)
    stat.add(10)

threading.Thread(target=work).start()
"""
    )
    assert ["x 13"] == ended.lines


def test_daemon_thread_that_never_stops_adding(run_script: RunScript) -> None:
    """A daemon thread that adds until the end does not disturb the flush or the exit."""
    ended = run_script(
        """
monitel.register_event_handler(lambda event: say(event.window.sum == event.window.count > 0))
stat, started = Stat("x", [SUM], 3600.0), threading.Event()

def work():
    while True:
        stat.add(1)
        started.set()

threading.Thread(target=work, daemon=True).start()
assert started.wait(30)
"""
    )
    assert (["True"], "") == (ended.lines[:1], ended.stderr)


def test_sub_interpreters_are_refused(run_script: RunScript, twin: str) -> None:
    """Importing the C module in a sub-interpreter is an ImportError, and the main interpreter continues."""
    if twin == "py":
        pytest.skip("only the C module has state that interpreters would share")
    ended = run_script(
        SAY
        + """
try:
    import _interpreters as interpreters  # 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

other = interpreters.create()
try:
    failure = interpreters.run_string(other, "import monitel")
except interpreters.RunFailedError as error:
    failure = error
say(failure.formatted if hasattr(failure, "formatted") else failure)
interpreters.destroy(other)
stat.add(1)
"""
    )
    assert "ImportError" in ended.lines[0]
    assert "interpreters" in ended.lines[0]
    assert ["x 4"] == ended.lines[-1:]
