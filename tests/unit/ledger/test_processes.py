"""The ledger of a process: from its start to its end, after exec and fork, and under torch.compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.ledger.books import decorator

if TYPE_CHECKING:
    from types import ModuleType

    from tests.core_conftest import RunScript

PRINT = """
import json, monitel
book = monitel.ledger()
print(json.dumps([book.elapsed_ns, dict(book.activities), book.start_ns, book.origin]))
"""
TICK_NS = 10**10 // os.sysconf("SC_CLK_TCK") // 10


def printed(*command: str, twin: str) -> tuple[Any, int, int]:
    """Return what a program prints, and Unix ns around it."""
    environment = {**os.environ, "MONITEL_NO_EXTENSIONS": "1" if twin == "py" else "0"}
    before_ns = time.time_ns()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout), before_ns, time.time_ns()


def test_startup_begins_with_the_process(twin: str) -> None:
    """The 0.3 s before the import count."""
    script = "import threading; threading.Event().wait(0.3)" + PRINT
    (elapsed_ns, activities, start_ns, origin), before_ns, after_ns = printed(sys.executable, "-c", script, twin=twin)
    assert "process" == origin
    assert {"startup": elapsed_ns} == activities
    assert 300_000_000 <= elapsed_ns <= after_ns - before_ns + TICK_NS
    assert before_ns - TICK_NS <= start_ns <= after_ns - 300_000_000


def test_startup_includes_what_ran_before_exec(twin: str) -> None:
    """A shell that waits and then replaces itself is part of the start, as a launcher's script is."""
    (elapsed_ns, *_), _, _ = printed("sh", "-c", 'sleep 0.3; exec "$0" -c "$1"', sys.executable, PRINT, twin=twin)
    assert elapsed_ns >= 300_000_000


def test_without_proc_the_ledger_begins_at_the_import(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that cannot be read, or is an hour ago, is not guessed."""
    now_ns = monitel.clock.since_boot_ns()
    monkeypatch.setattr(monitel.activities, "_HOUR_NS", 0)
    monitel.activities._open()
    book = monitel.ledger()
    assert "import" == book.origin
    assert book.elapsed_ns <= monitel.clock.since_boot_ns() - now_ns


def test_a_forked_child_has_a_ledger_from_its_first_step_on(run_script: RunScript) -> None:
    """A worker has none; a child that trains has one since the fork. The parent's goes on."""
    ended = run_script(
        """
import os
with monitel.activity("evaluation"):
    monitel.set_step(7)
    if os.fork() == 0:
        found = [monitel.ledger()]
        with monitel.activity("data"):
            found.append(monitel.ledger())
        monitel.set_step(1)
        with monitel.activity("data"):
            book = monitel.ledger()
        assert book.elapsed_ns == sum(book.activities.values())
        say(*found, book.origin, *book.activities)
        os._exit(0)
    os.wait()
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    say(book.origin, book.current)
say(monitel.ledger().current)
"""
    )
    assert ["None None fork startup data step", "process evaluation", "step"] == ended.lines


def test_a_fork_in_another_thread_and_within_activities(run_script: RunScript) -> None:
    """The child leaves the parent's activities without effect; the thread that forks is its training thread."""
    ended = run_script(
        """
made = monitel.activity("evaluation")

def child():
    made.__exit__(None, None, None)
    monitel.activities.begin_shutdown()
    say(monitel.ledger(), monitel.activities.position(), monitel.activities.enter_for_owner("stuck"))
    with made:
        monitel.set_step(3)
        with monitel.activity("data"):
            say(monitel.ledger().current, monitel.activities.position()[0] == threading.get_ident())
    book = monitel.ledger()
    say(book.current, book.origin, "evaluation" in book.activities, book.elapsed_ns == sum(book.activities.values()))
    if os.fork() == 0:
        say(monitel.ledger())
        monitel.set_step(4)
        say(monitel.ledger().origin, monitel.ledger().elapsed_ns < book.elapsed_ns + 10**9)
        os._exit(0)
    os.wait()

def fork():
    if os.fork() == 0:
        within(20, child)
        os._exit(0)
    os.wait()

with made, monitel.activity("init"):
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    say(monitel.ledger().current)
"""
    )
    expected = ["None (0, '', 0) None", "data True", "step fork False True", "None", "fork True", "init"]
    assert expected == ended.lines


def test_shutdown_lasts_from_the_exit_on(run_script: RunScript) -> None:
    """The exit inside an activity too; a last checkpoint counts as one."""
    ended = run_script(
        """
import atexit
from monitel import run_events

@atexit.register
def last():
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    say(book.current, book.origin)
    with monitel.activity("checkpoint.save"):
        say(monitel.ledger().current)
    say(monitel.ledger().current)

run_events.enter(object(), enabled=False)
monitel.set_step(1)
with monitel.activity("evaluation"):
    sys.exit()
"""
    )
    assert ["shutdown process", "checkpoint.save", "shutdown"] == ended.lines
    assert not ended.stderr


def test_activities_during_the_end_of_the_interpreter(run_script: RunScript) -> None:
    """Destructors, threads that never end and activities that nobody leaves delay nothing and print nothing."""
    ended = run_script(
        """
import atexit

class Late:
    def __del__(self):
        with self.activity:
            self.found.append(self.ledger())

late = Late()
late.activity, late.ledger, late.found = monitel.activity("data"), monitel.ledger, []
late.cycle = late
sys.late = late
entered = [monitel.activity("evaluation") for _ in range(3)]
for each in entered:
    each.__enter__()

def forever():
    while True:
        with monitel.activity("data"):
            monitel.ledger()
            monitel.counters()

for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
atexit.register(monitel.activities.begin_shutdown)
monitel.set_step(1)
say("end")
"""
    )
    assert ["end"] == ended.lines
    assert not ended.stderr


@pytest.mark.torch
def test_activities_have_no_effect_while_torch_traces(monitel: ModuleType) -> None:
    """A compiled function with an activity has one graph, and runs as without."""
    torch = pytest.importorskip("torch")
    monitel.set_step(1)

    @decorator(monitel, "decorated")
    def inner(x: Any) -> Any:
        return x * 2

    def outer(x: Any) -> Any:
        with monitel.activity("inside"):
            return inner(x) + 1

    function = torch.compile(outer, fullgraph=True, backend="eager")
    with monitel.activity("around"):
        assert [3.0, 5.0] == function(torch.tensor([1.0, 2.0])).tolist()
        assert "around" == monitel.ledger().current
    for compiled in (function, torch.compile(inner, fullgraph=True, backend="eager")):
        assert compiled(torch.tensor([1.0])).shape == (1,)
    assert not {"inside", "decorated"} & {*monitel.ledger().activities}
